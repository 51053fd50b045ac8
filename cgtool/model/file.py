"""Read and write ``.cgt`` files. (Interface only at this commit; see docs/capture-format.md.)"""
