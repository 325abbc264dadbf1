"""Replays of idle fragments: trainers run on nodes that other jobs leave idle.

``fragments`` when nodes were idle, read or generated; ``trainers`` what runs on them;
``replay.replay`` runs it under a policy, and ``replay.Charge`` says what a rescale costs.
"""
