"""What changed between two captures.

``facts`` says what a node is known by, ``matching`` what two sequences share, ``pairing`` which
node is which, ``edges`` what waits for other nodes than before; ``graphs`` does this for every
graph. ``rows``, ``figures``, ``notes`` and ``sentence`` make the ``report`` of it.
"""

from cgtool.analysis.diff.compare import compare

__all__ = ["compare"]
