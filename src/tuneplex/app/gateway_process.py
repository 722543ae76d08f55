"""A gateway process, started by the supervisor.

::

    python -m tuneplex.app.gateway_process --state-dir DIR --lifeline FD --index N --listener FD [--tls-cert F --tls-key F]
"""
