"""What moving numbers is taken to cost when plans are compared."""

LINE = 64  # bytes of a cache line
MOVE, TURN, SCALAR = 0.2, 0.5, 2.0  # cycles per number copied by vectors, transposed, one at a time
MOST_SPREAD = 8  # channels per group up to which vectors may run across groups
SCATTERED = 0.8  # cycles more per weight, of lanes farther apart than rows, which are not side by side either
TURN_NARROW = 1.0  # likewise besides, of 16 bits that meet one tap, which are converted as well
TURN_BACK = 0.6  # cycles per number that is transposed on its way out
TURN_PLANES = 1.1  # likewise of channels that are planes apart, one of each group
BEYOND_L2 = 2**20  # bytes of tensors that it does not hold
MEMORY_BYTES = 4.5  # per cycle, from where larger ones are
SPLIT = 0.15  # cycles per number and piece, beyond those of a copy
