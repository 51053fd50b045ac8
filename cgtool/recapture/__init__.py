"""Captured code that runs again: what it records then, and what the host state has to do with it.

``host_state`` saves, changes and restores what Python holds, ``iteration`` records one run as a
stream of ops, ``compare`` finds the first op that two runs do not share, ``experiment`` runs the
code from other host state, and finds the state that makes the difference.
"""
