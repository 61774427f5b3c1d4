"""Processes that compute for the gateway and can be killed.

::

program.py     the program of a worker; it imports nothing of the gateway
worker.py      the gateway's end: one started worker
pool.py        workers that are used again
fair_slots.py  who computes next
"""
