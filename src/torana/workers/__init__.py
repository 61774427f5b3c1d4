"""Processes that compute for the gateway and can be killed.

::

    program.py     the program of a worker; it imports nothing of the gateway
    worker.py      one worker process
    pool.py        workers that are reused
    fair_slots.py  slots that users get in turn
"""
