"""A simulated MPS stack: control daemon, server and CUDA clients for machines with no GPU and no vendor binary.

The socket contract, the replies and the log lines are those of the vendor's driver 580.159.04 (seen with strace on an
H200; the daemon of 535 was asked where the traces are silent). What lies behind the contract is make-believe: GPU
memory is a memfd, a kernel is a timer. Everything that names a device says "Simulated GPU".
"""
