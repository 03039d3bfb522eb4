"""Work on many bars at once: lookbacks to tokens, prompts into slots, tokens to bars."""
