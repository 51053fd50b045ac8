"""Inside the user's program: the graphs that it captures and replays, noted as it runs.

``site`` is put on the path of every Python process that ``cgtool run`` starts; ``begin`` waits
there until PyTorch is imported; ``recorder`` notes what happens to graphs.
"""
