/* Reset of a Cortex-M, and the few calls to the debugger (semihosting) that a measurement needs. */
#include "board.h"

extern uint32_t data_start[], data_end[], data_load[], bss_start[], bss_end[], stack_top[];
int main(void);

__attribute__((naked)) static uintptr_t ask(uintptr_t operation, const void *argument)
{
    __asm__ volatile("bkpt 0xab\n\tbx lr");
    (void)operation;
    (void)argument;
}

void board_print(const char *text)
{
    ask(0x04, text);
}

void board_print_number(const char *name, uint32_t value)
{
    char digits[12];
    int i = 11;
    digits[i] = 0;
    do {
        digits[--i] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    board_print(name);
    board_print(" ");
    board_print(digits + i);
    board_print("\n");
}

void board_exit(int status)
{
    const uintptr_t reason[2] = {0x20026, (uintptr_t)status}; /* the application ended */
    ask(0x20, reason);
    for (;;)
        ;
}

__attribute__((noreturn, used)) static void start(void)
{
    uint32_t *to;
    const uint32_t *from = data_load;
    for (to = data_start; to < data_end; to++)
        *to = *from++;
    for (to = bss_start; to < bss_end; to++)
        *to = 0;
    board_exit(main());
    for (;;)
        ;
}

__attribute__((naked, used)) void reset(void)
{
    /* Let the floating-point unit work, before anything uses it. */
    __asm__ volatile("ldr r0, =0xe000ed88\n\tldr r1, [r0]\n\torr r1, r1, #0xf00000\n\tstr r1, [r0]\n\tdsb\n\tisb\n\tb start");
}

__attribute__((used)) static void fault(void)
{
    board_print("fault\n");
    board_exit(3);
}

__attribute__((section(".vectors"), used)) static void (*const vectors[16])(void) = {
    (void (*)(void))stack_top, reset, fault, fault, fault, fault, fault, 0, 0, 0, 0, fault, fault, 0, fault, fault,
};
