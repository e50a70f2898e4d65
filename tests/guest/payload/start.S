/*
 * From the VMM's entry (32-bit, paging off, ebx = start info) to main() in long mode with the first
 * 6 GiB mapped one to one. The page tables are data, so that setting them up costs no instruction.
 * The application processors start at `trampoline`, which the boot processor copies below 1 MiB.
 */
#define TRAMPOLINE 0x8000
#define STACK_BYTES 16384
#define CPUS_MAX 32
#define CR0_PE_PG 0x80000011
#define CR4_PAE 0x20
#define MSR_EFER 0xc0000080
#define EFER_LME 0x100
#define SEL_CODE32 0x08
#define SEL_DATA 0x10
#define SEL_CODE64 0x18

	.section .note.pvh, "a", @note
	.balign 4
	.long 4, 4, 18
	.asciz "Xen"
	.long pvh_start

	.text
	.code32
	.globl pvh_start
pvh_start:
	cli
	lgdt	gdt_pointer
	mov	%ebx, %edi
	movl	$stacks + STACK_BYTES, %esp
	xor	%esi, %esi
	jmp	enter_long

/* edi and esi are main's arguments; esp is set. */
enter_long:
	mov	$CR4_PAE, %eax
	mov	%eax, %cr4
	mov	$pml4, %eax
	mov	%eax, %cr3
	mov	$MSR_EFER, %ecx
	rdmsr
	or	$EFER_LME, %eax
	wrmsr
	mov	$CR0_PE_PG, %eax
	mov	%eax, %cr0
	ljmp	$SEL_CODE64, $long_mode

	.code64
long_mode:
	mov	$SEL_DATA, %eax
	mov	%eax, %ds
	mov	%eax, %es
	mov	%eax, %ss
	test	%esi, %esi
	jnz	ap_main
	call	payload_main
1:	hlt
	jmp	1b

/* 16-bit code at TRAMPOLINE. */
	.code16
	.globl trampoline, trampoline_end
trampoline:
	cli
	xor	%ax, %ax
	mov	%ax, %ds
	lgdtl	TRAMPOLINE + (trampoline_gdt_pointer - trampoline)
	mov	$0x11, %eax
	mov	%eax, %cr0
	ljmpl	$SEL_CODE32, $ap_protected
trampoline_gdt_pointer:
	.word	gdt_end - gdt - 1
	.long	gdt
trampoline_end:

	.code32
ap_protected:
	mov	$SEL_DATA, %eax
	mov	%eax, %ds
	mov	%eax, %es
	mov	%eax, %ss
	mov	$1, %esi
	lock xaddl %esi, next_cpu	/* each gets a number and with it a stack */
	mov	%esi, %eax
	imul	$STACK_BYTES, %eax
	lea	stacks + STACK_BYTES(%eax), %esp
	jmp	enter_long

	.code64
ap_main:
	mov	%esi, %edi
	call	payload_ap
1:	hlt
	jmp	1b

/* Interrupt entry: counts, acknowledges at the local APIC, returns. */
	.globl irq_entry
irq_entry:
	push	%rax
	incl	irq_count
	mov	$0xfee000b0, %eax
	movl	$0, (%rax)
	pop	%rax
	iretq

	.data
	.balign 16
gdt:
	.quad	0
	.quad	0x00cf9b000000ffff
	.quad	0x00cf93000000ffff
	.quad	0x00af9b000000ffff
gdt_end:
gdt_pointer:
	.word	gdt_end - gdt - 1
	.long	gdt
	.balign 4
next_cpu:
	.long	1
	.globl irq_count
irq_count:
	.long	0

	.balign 4096
pml4:
	.quad	pdpt + 7
	.fill	511, 8, 0
pdpt:
	.set	i, 0
	.rept	6
	.quad	pd + i * 4096 + 7
	.set	i, i + 1
	.endr
	.fill	506, 8, 0
pd:
	.set	i, 0
	.rept	6 * 512
	.quad	i * 0x200000 + 0x87
	.set	i, i + 1
	.endr

	.bss
	.balign 16
stacks:
	.skip	STACK_BYTES * CPUS_MAX
	.section .note.GNU-stack, "", @progbits
