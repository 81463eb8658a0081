/* Tile instructions on a processor that has none: each raises SIGILL, and the handler here does what the manual says.

   So kernels for AMX run as they are, instruction by instruction, and what the processor would refuse is refused: tiles
   that nobody configured, shapes that do not meet, reserved bits. (Intel 64 and IA-32 Architectures Software Developer's
   Manual: LDTILECFG, TILELOADD, TILESTORED, TDPBF16PS, exceptions of class AMX-E1 to AMX-E6.) Whatever it does not know
   goes to the handler that was there before. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };
enum { CONFIGURE, RELEASE, ZERO, LOAD, STORE, MULTIPLY, KINDS };

typedef struct {
    int configured;
    int rows[TILES], bytes[TILES]; /* a row's */
    uint8_t data[TILES][ROWS][ROW_BYTES] __attribute__((aligned(64)));
} Tiles;

static __thread Tiles *own __attribute__((tls_model("initial-exec")));
static struct sigaction before;
static int64_t counted[KINDS], configured_threads;
static const int REGISTERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static Tiles *tiles(void) {
    if (!own) own = mmap(0, sizeof *own, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return own;
}

static void refuse(const char *why) {
    dprintf(2, "tile instruction refused: %s\n", why);
    abort(); /* the report of what ran, if somebody makes one, is of more use than a number */
}

static void demand(int holds, const char *why) {
    if (!holds) refuse(why);
}

static void count(int kind, int64_t by) { __atomic_add_fetch(&counted[kind], by, __ATOMIC_RELAXED); }

static void configure(const uint8_t *from) {
    Tiles *t = tiles();
    demand(from[0] == 1, "palette 1 is what eight tiles belong to");
    for (int i = 1; i < 16; i++) demand(!from[i], "the start row and reserved bytes are zero");
    for (int i = 0; i < 16; i++) {
        int bytes = from[16 + 2 * i] | from[17 + 2 * i] << 8, rows = from[48 + i];
        demand(rows <= ROWS && bytes <= ROW_BYTES, "a tile has 16 rows of 64 bytes at most");
        demand(!rows == !bytes, "rows without bytes, or bytes without rows");
        demand(i < TILES || !rows, "there are eight tiles");
        if (i < TILES) t->rows[i] = rows, t->bytes[i] = bytes;
    }
    memset(t->data, 0, sizeof t->data);
    if (!t->configured) __atomic_add_fetch(&configured_threads, 1, __ATOMIC_RELAXED);
    t->configured = 1;
}

static Tiles *known(int tile) {
    Tiles *t = tiles();
    demand(t->configured, "no tiles are configured");
    demand(tile < TILES && t->rows[tile], "a tile that is not configured");
    return t;
}

/* C[m, n] += A[m, 2k] * B[k, 2n] + A[m, 2k + 1] * B[k, 2n + 1]: even and odd products summed apart, added to C last */
static void multiply(int c, int a, int b) {
    Tiles *t = known(c);
    known(a), known(b);
    demand(c != a && c != b && a != b, "three different tiles");
    demand(t->rows[c] == t->rows[a] && t->bytes[c] == t->bytes[b] && t->bytes[a] / 4 == t->rows[b], "shapes do not meet");
    demand(t->bytes[c] % 4 == 0 && t->bytes[a] % 4 == 0, "a part of a number");
    unsigned modes = _mm_getcsr();
    _mm_setcsr(0x9fc0); /* to nearest, nothing raised, denormals are zero on the way in and out */
    for (int m = 0; m < t->rows[c]; m++) {
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (int k = 0; k < t->rows[b]; k++) {
            uint32_t pair;
            memcpy(&pair, &t->data[a][m][4 * k], 4);
            __m512i of_b = _mm512_load_si512(t->data[b][k]);
            __m512 low = _mm512_castsi512_ps(_mm512_slli_epi32(of_b, 16));
            __m512 high = _mm512_castsi512_ps(_mm512_and_si512(of_b, _mm512_set1_epi32((int)0xffff0000)));
            even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32((int)(pair << 16))), low, even);
            odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32((int)(pair & 0xffff0000))), high, odd);
        }
        __m512 sum = _mm512_add_ps(_mm512_load_ps(t->data[c][m]), _mm512_add_ps(even, odd));
        __mmask16 columns = (__mmask16)((1u << t->bytes[c] / 4) - 1);
        _mm512_store_ps(t->data[c][m], _mm512_maskz_mov_ps(columns, sum));
    }
    _mm_setcsr(modes);
}

static void move(int tile, uint8_t *at, int64_t step, int stores) {
    Tiles *t = known(tile);
    for (int row = 0; row < t->rows[tile]; row++) {
        uint8_t *own_row = t->data[tile][row], *other = at + step * row;
        stores ? memcpy(other, own_row, t->bytes[tile]) : memcpy(own_row, other, t->bytes[tile]);
    }
    if (stores) return;
    for (int row = 0; row < ROWS; row++) {
        int kept = row < t->rows[tile] ? t->bytes[tile] : 0;
        memset(t->data[tile][row] + kept, 0, ROW_BYTES - kept);
    }
}

/* Where an operand in memory begins, and what its index register says; moves `next` behind it. */
static uint8_t *operand(const greg_t *g, const uint8_t **next, int modrm, int x, int b, int64_t *step) {
    int mod = modrm >> 6, rm = modrm & 7, base = rm | b << 3;
    int64_t address = 0;
    *step = 0;
    if (rm == 4) {
        int sib = *(*next)++, index = (sib >> 3 & 7) | x << 3;
        base = (sib & 7) | b << 3;
        if (index != 4) *step = g[REGISTERS[index]] << (sib >> 6);
        if ((base & 7) == 5 && mod == 0) mod = 4; /* a displacement alone */
    } else if (rm == 5 && mod == 0) {
        int32_t far;
        memcpy(&far, *next, 4), *next += 4;
        return (uint8_t *)*next + far;
    }
    if (mod != 4) address = g[REGISTERS[base]];
    if (mod == 1) address += (int8_t)*(*next)++;
    if (mod == 2 || mod == 4) {
        int32_t far;
        memcpy(&far, *next, 4), *next += 4;
        address += far;
    }
    return (uint8_t *)address;
}

/* One instruction; the address of the next, or null if it is none of ours. */
static const uint8_t *execute(const greg_t *g, const uint8_t *at) {
    if (at[0] != 0xc4 || (at[1] & 0x1f) != 2 || at[2] & 0x84) return 0; /* VEX.128.0F38.W0 */
    int r = !(at[1] & 0x80), x = !(at[1] & 0x40), b = !(at[1] & 0x20);
    int vvvv = ~at[2] >> 3 & 15, prefix = at[2] & 3, opcode = at[3], modrm = at[4];
    int reg = (modrm >> 3 & 7) | r << 3, in_registers = modrm >> 6 == 3;
    const uint8_t *next = at + 5;
    int64_t step;
    if (opcode == 0x49 && prefix == 0 && !in_registers && (modrm >> 3 & 7) == 0) {
        uint8_t *from = operand(g, &next, modrm, x, b, &step);
        count(CONFIGURE, 1), configure(from);
    } else if (opcode == 0x49 && prefix == 0 && modrm == 0xc0) {
        if (tiles()->configured) __atomic_add_fetch(&configured_threads, -1, __ATOMIC_RELAXED);
        count(RELEASE, 1), tiles()->configured = 0;
    } else if (opcode == 0x49 && prefix == 3 && in_registers && (modrm & 7) == 0) {
        count(ZERO, 1), memset(known(reg)->data[reg], 0, ROWS * ROW_BYTES);
    } else if (opcode == 0x4b && prefix && !in_registers && (modrm & 7) == 4) {
        uint8_t *place = operand(g, &next, modrm, x, b, &step);
        count(prefix == 2 ? STORE : LOAD, 1), move(reg, place, step, prefix == 2);
    } else if (opcode == 0x5c && prefix == 2 && in_registers) {
        count(MULTIPLY, 1), multiply(reg, (modrm & 7) | b << 3, vvvv);
    } else {
        return 0;
    }
    return next;
}

static void handle(int signal, siginfo_t *info, void *context) {
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *next = execute(g, (const uint8_t *)g[REG_RIP]);
    if (next)
        g[REG_RIP] = (greg_t)next;
    else if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(signal, info, context);
    else
        sigaction(SIGILL, &before, 0); /* and again */
}

int trap(void) {
    struct sigaction ours = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    memset(counted, 0, sizeof counted);
    return sigaction(SIGILL, &ours, &before);
}

int release(void) { return sigaction(SIGILL, &before, 0); }

int64_t executed(int kind) { return counted[kind]; }

/* Threads that hold tiles now. */
int64_t holding(void) { return configured_threads; }
