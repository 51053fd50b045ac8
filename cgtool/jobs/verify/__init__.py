"""Does a replay equal eager? The same trials on a GPU and on the simulated device."""
