/* Instructions and stack of a step. Under `qemu -icount shift=0` an instruction takes a nanosecond of the board's time,
 * which its timer counts in ticks of 40. */
#include "board.h"
#include "model.h"

#define STEPS 200
#define STACK_WORDS 4096
#define FREE_WORDS 24 /* of main itself */
#define TICK 40

static model_state state;

static uint32_t ticks(void)
{
    return 0xffffffu - *(volatile uint32_t *)0xe000e018; /* the timer counts down */
}

int main(void)
{
    MODEL_INPUT x[MODEL_INPUTS];
    float y[MODEL_OUTPUTS];
    uint32_t seed = 1, spent = 0, start, empty, i, step, here = 0;
    volatile uint32_t *stack = &here;
    *(volatile uint32_t *)0xe000e014 = 0xffffffu;
    *(volatile uint32_t *)0xe000e018 = 0;
    *(volatile uint32_t *)0xe000e010 = 5; /* the processor's clock, no interrupt */
    for (i = FREE_WORDS; i < STACK_WORDS; i++)
        stack[-(int32_t)i] = 0xa5a5a5a5u;
    model_init(&state);
    start = ticks();
    empty = (ticks() - start) & 0xffffffu;
    for (step = 0; step < STEPS; step++) {
        for (i = 0; i < MODEL_INPUTS; i++) {
            seed = seed * 1664525u + 1013904223u;
            x[i] = MODEL_SAMPLE;
        }
        start = ticks();
        if (model_step(&state, x, y) != 0)
            return 1;
        spent += ((ticks() - start) & 0xffffffu) - empty;
    }
    for (i = STACK_WORDS - 1; i > FREE_WORDS && stack[-(int32_t)i] == 0xa5a5a5a5u; i--)
        ;
    board_print_number("instructions", spent * TICK / STEPS);
    board_print_number("stack", 4 * i);
    return 0;
}
