"""What a job does on a GPU: samples/s by model, GPU type, number of GPUs and batch.

A shipped table, an estimate where the table is silent, and corrections by what was measured.
"""
