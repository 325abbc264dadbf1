"""Jobs as rounds of tasks (Hare's model): simulated task by task, without a controller.

``jobs`` what is to be run, ``policies.simulate_tasks`` runs it under a policy by its name.
"""
