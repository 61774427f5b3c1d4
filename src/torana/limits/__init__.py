"""Limits on messages and spending for a user, a token and the whole gateway.

=====================  =======================================================
``policies``           limits as written in the settings, and their time windows
``rates``              messages per minute, in memory
``prices``             prices of the models' tokens
``request_tokens``     token estimates of model requests
``budgets``            budgets of messages, tokens, money and turns, in rows
``limit_usage``        usage of the limits that apply to a turn
``rate_limit_status``  state of the limits for headers and refusals
``usage_reports``      reports of the usage per day
=====================  =======================================================

``policies`` and ``prices`` import no large libraries: the settings import them.
"""
