"""Who computes what and when. No torch.

``scheduler`` is what the engine calls. ``shares`` counts what each job has and says what it should have;
``allocation`` gives out slots by that. ``path_table`` has what a decode step needs of their paths.
"""
