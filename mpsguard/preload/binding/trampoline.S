// dlsym and dlopen, each in front of glibc's own.
//
// glibc knows the caller by the return address: RTLD_NEXT counts from the caller, and a file is looked for along
// the caller's RUNPATH. So a call that is passed on must be a jump, which no C compiler promises. Each stub saves its
// arguments, asks its C function (interpose.c), and then answers, or jumps on: 0 passes on, 1 answers NULL, else the answer.

#if defined(__CET__)
#include <cet.h>
#endif
#ifndef _CET_ENDBR
#define _CET_ENDBR
#endif

.macro stub name question real
    .globl \name
    .type \name, %function
    .p2align 4
\name:
    .cfi_startproc
#if defined(__x86_64__)
    _CET_ENDBR
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    movq 24(%rsp), %rdx
    call \question
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rax, %rax
    jz 1f
    cmpq $1, %rax
    jne 2f
    xorl %eax, %eax
2:  ret
1:  jmpq *\real(%rip)
#elif defined(__aarch64__)
    hint #34
    stp x29, x30, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    .cfi_rel_offset x30, 8
    stp x0, x1, [sp, #16]
    mov x29, sp
    mov x2, x30
    bl \question
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_adjust_cfa_offset -32
    .cfi_restore x30
    cbz x16, 1f
    cmp x16, #1
    csel x0, xzr, x16, eq
    ret
1:  adrp x16, \real
    ldr x16, [x16, #:lo12:\real]
    br x16
#endif
    .cfi_endproc
    .size \name, . - \name
.endm

    .text
    stub dlsym interpose_dlsym lookup_dlsym
    stub dlopen interpose_dlopen lookup_dlopen

    .section .note.GNU-stack, "", %progbits
