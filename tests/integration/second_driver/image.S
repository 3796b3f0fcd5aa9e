// An image as the driver's loader sees one: kernels, a variable that one of them writes, and a constant.
    .section .nv.global.init, "aw", @progbits
    .globl counter
    .type counter, @object
    .size counter, 4
counter: .long 41
#ifdef POINTERS
    .globl pointer
    .type pointer, @object
    .size pointer, 8
pointer: .quad counter
#endif
    .section .nv.constant3, "aw", @progbits
    .globl factor
    .type factor, @object
    .size factor, 4
factor: .long 5
    .globl place
    .type place, @object
    .size place, 8
    .balign 8
place: .quad 0
#ifndef VARIABLES_ALONE
    .section .text.kernels, "ax", @progbits
    .globl affine
    .type affine, @function
affine: .long 0
    .globl count
    .type count, @function
count: .long 0
    .globl scale
    .type scale, @function
scale: .long 0
    .globl combine
    .type combine, @function
combine: .long 0
    .globl arbitrary
    .type arbitrary, @function
arbitrary: .long 0
#endif
