"""What a user, a token and all together may still send and spend.

==============  ================================================================
``policies``    a limit as it is written in the settings, and its window of time
``standings``   how limits stand for a message, in headers and in a refusal
``rates``       messages a minute, in memory
``prices``      what a model's tokens cost
``budgets``     messages, tokens, money and turns, in rows
``spending``    what was spent, day by day
==============  ================================================================

``policies`` and ``prices`` import nothing heavy: the settings are read with them.
"""
