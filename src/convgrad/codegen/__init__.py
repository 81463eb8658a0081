"""From a plan to LLVM IR: `lower.lower`. Nothing is imported here, since cached kernels need no compiler."""
