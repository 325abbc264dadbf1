"""Importing this keeps PyTorch from importing its compiler at an optimizer's first step, for which
each of many small processes would take a second of CPU time."""

import sys
import types

stub = types.ModuleType("torch._dynamo")
stub.graph_break = lambda: None
stub.disable = lambda function, *_, **__: function
sys.modules.setdefault("torch._dynamo", stub)
