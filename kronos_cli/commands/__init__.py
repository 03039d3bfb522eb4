"""The commands of ``kronos``, one module each. Slow imports wait until a command needs them.

``options`` has what several of them share, ``finetune_views`` what ``finetune`` shows.
"""
