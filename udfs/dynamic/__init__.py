"""Tables without windows: current sums, released at every trigger, for ever."""
