"""Training one stage, the tokenizer or the predictor, from its windows to its best weights."""
