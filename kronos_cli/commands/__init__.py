"""The larger commands of ``kronos``, one each file, with what it needs imported late."""
