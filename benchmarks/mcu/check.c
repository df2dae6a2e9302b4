/* Runs the check program of an export, whose text goes through the debugger. */
#include <stdio.h>

void initialise_monitor_handles(void);
int check_main(void);

int main(void)
{
    int status;
    initialise_monitor_handles();
    status = check_main();
    fflush(stdout);
    return status;
}
