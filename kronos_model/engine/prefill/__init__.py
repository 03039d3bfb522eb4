"""Work on many bars at once: lookbacks to tokens, prompts into slots, tokens to bars.

``inputs`` plans on the host what a step's chunks need on the device, and copies it there. ``tokens`` encodes
lookbacks and decodes paths. ``packed`` computes the attention of many segments together, off the CPU.
"""
