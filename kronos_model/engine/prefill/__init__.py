"""Work on many bars at once: lookbacks to tokens, prompts into slots, tokens to bars.

- ``inputs``: plans on the host what the chunks of a step need on the device: what is placed in slots, the
  lookbacks, and the context; and copies it there.
- ``tokens``: encodes lookbacks to tokens, and decodes paths to bars.
- ``packed``: the attention of many segments together, off the CPU.
"""
