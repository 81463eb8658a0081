/* Runs the stages of one kernel for another processor: run_foreign CALL RESULT.

   CALL holds the sizes of x, w, y, bias, shared and scratch, the places of element zero in the first four, and the bytes
   of these; RESULT gets their bytes afterwards. Each buffer has redzones; status 3 says that one was written to.
   Linked with an object whose stages are called stage_0, stage_1, ... */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REDZONE 4096
extern void stage_0(void *call);
extern void stage_1(void *call) __attribute__((weak));

int main(int count, char **arguments) {
    if (count != 3) return 2;
    int64_t sizes[6], zero[4], call[9];
    FILE *file = fopen(arguments[1], "rb");
    if (!file || fread(sizes, sizeof sizes, 1, file) != 1 || fread(zero, sizeof zero, 1, file) != 1) return 2;
    uint8_t *buffers[6];
    for (int i = 0; i < 6; i++) {
        size_t whole = (sizes[i] + 2 * REDZONE + 63) / 64 * 64;
        uint8_t *memory = aligned_alloc(64, whole);
        if (!memory) return 2;
        memset(memory, 0xFF, whole);
        buffers[i] = memory + REDZONE;
        if (i < 4 && sizes[i] && fread(buffers[i], sizes[i], 1, file) != 1) return 2;
        call[i] = (int64_t)(buffers[i] + (i < 4 ? zero[i] : 0));
    }
    fclose(file);
    call[6] = call[7] = call[8] = 0;
    stage_0(call);
    call[6] = call[7] = call[8] = 0;
    if (stage_1) stage_1(call);
    for (int i = 0; i < 6; i++)
        for (int at = 0; at < REDZONE; at++)
            if (buffers[i][at - REDZONE] != 0xFF || buffers[i][sizes[i] + at] != 0xFF) return 3;
    file = fopen(arguments[2], "wb");
    for (int i = 0; i < 4; i++)
        if (!file || (sizes[i] && fwrite(buffers[i], sizes[i], 1, file) != 1)) return 2;
    return fclose(file) ? 2 : 0;
}
