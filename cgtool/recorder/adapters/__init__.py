"""Engines that say with which sizes they capture and replay, without ``cgtool.note`` in them.

One file for each engine. It names methods of the engine that know the sizes of the batch which is
computed next; what they return is noted as the program itself would.
"""
