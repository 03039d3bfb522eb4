"""Who computes what and when. No torch.

``scheduler`` is what the engine calls. ``jobs`` counts what each job has, ``shares`` says what it should
have, ``allocation`` gives out ``slots`` by that. ``path_table`` has what a decode step needs of their paths.
"""
