"""Captured code that runs again: what it records then, and what the host state has to do with it.

``host_state`` saves, changes and restores what Python holds. ``iteration`` records one run as a
stream of ``ops``, of which ``compare`` finds the first that two runs do not share. ``contained``
undoes what a run writes and limits what it may do. ``experiment`` runs an entry from other host
state, and finds the state that makes the difference; ``regions`` does so with what a script has
captured, as its replays begin, by a ``trial`` each time.
"""
