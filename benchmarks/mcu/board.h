#include <stdint.h>

void board_print(const char *text);
void board_print_number(const char *name, uint32_t value);
void board_exit(int status);
