"""Middleware for every request, from the outside: log, keys, rate, body, encodings, HEAD.

- ``request_log``: one log line, request ids, and an answer to defects.
- ``authentication``: keys with their scopes, and host names.
- ``rate_limit``: requests a minute of a key.
- ``body_limits``: how slowly a body may come, and its size.
- ``encodings``: decoded bodies and compressed answers.
- ``head``: HEAD as GET without the body.
"""
