/* LoRA products for a batch of many adapters, on x86 CPUs that multiply bfloat16: with matrix tiles (AMX), or with
 * vectors of AVX-512.
 *
 *     y[rows, columns] += bf16(x[rows] @ A) @ B       for every adapter of a step, at its own rank
 *
 * One call does a whole module (q, k and v are one). Weights are bfloat16, sums are float32, and y is rounded once.
 * What makes it fast on small batches is not the arithmetic, but that nothing else happens: no padding, no temporary
 * tensors, no product per adapter and part, and the weights are read once, in the order in which they lie.
 *
 * Layout of weights, made by native.py. A matrix W[n, k], "n outputs of k inputs", lies as column tiles of 16 outputs
 * (the last of A may be narrower); in a tile, pairs of inputs lie side by side for each output, as TDPBF16PS wants it:
 * tile[k / 2][output][2]. VDPBF16PS wants the same, a tile's row being one vector. k of A is filled up to a multiple of 32 with zeros, k of B (the rank) to an even number.
 *
 * Everything below is private to tuneplex_vllm.native, which checks shapes and keeps the memory alive.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))
#define AVX __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
/* For functions whose first arguments are constants: loops over them are unrolled, and their arrays become registers. */
#define SHAPED static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef uint16_t bf16;

enum {
    ROWS = 16,  /* of a tile of x or y */
    WIDE = 16,  /* float32 columns of a tile */
    DEPTH = 32, /* bfloat16 inputs of a tile */
    CHUNK = 16, /* column tiles of y that are one piece of work */
};

/* The values that native.py writes: int64 and addresses, so that a tensor of int64 holds each of these. */
typedef struct {
    int64_t low;    /* first column of x @ A that belongs to this part */
    int64_t rank;   /* even */
    const bf16 *b;  /* [rank] to [outputs] */
    int64_t column; /* first column of y */
    int64_t outputs;
} Part;

typedef struct {
    int64_t inputs;
    int64_t depth;  /* inputs, filled up */
    int64_t rank;   /* of all parts together */
    const bf16 *a;  /* [depth] to [rank] */
    int64_t parts;
    Part part[];
} Weights;

typedef struct {
    int64_t slot;
    int64_t rows;   /* how many rows of the batch use the slot */
    int64_t first;  /* where they begin in the plan's list of rows */
} Group;

typedef struct {
    int64_t groups;
    int64_t rows;   /* length of the list of rows, which follows the groups */
    Group group[];
} Plan;

/* One call. */
typedef struct {
    const Weights *const *weights; /* of each slot; NULL where it changes nothing */
    const Plan *plan;
    const int64_t *rows;
    bf16 *y;
    int64_t y_stride;
    const bf16 *x;
    int64_t x_stride;
    bf16 *low;      /* x @ A, a row for each entry of the plan's list */
    int64_t low_stride;
    bf16 *gathered; /* ROWS rows of x for each thread */
    int64_t gathered_size;
} Job;

/* The 64 bytes of LDTILECFG. */
typedef struct __attribute__((packed)) {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} Shapes;

static int64_t at_most(int64_t value, int64_t limit) { return value < limit ? value : limit; }
static int64_t pieces(int64_t whole, int64_t piece) { return (whole + piece - 1) / piece; }

static void shape(Shapes *shapes, int tile, int64_t rows, int64_t bytes) {
    shapes->rows[tile] = (uint8_t)rows;
    shapes->bytes[tile] = (uint16_t)bytes;
}

/* --- What both kinds of products need */

AVX static inline __m512 widened(__m256i value) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(value), 16));
}

/* to[column] += sums, of which those in the mask count. */
AVX static inline void accumulate(__m512 sums, bf16 *to, __mmask16 mask) {
    __m512 old = widened(_mm256_maskz_loadu_epi16(mask, to));
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(old, sums)));
}

static inline uint16_t first_of_16(int64_t count) { return (uint16_t)((1u << at_most(count, WIDE)) - 1); }

/* --- The two products on tiles, for at most ROWS rows */

/* float32 [rows, width] to bfloat16. */
AMX static void narrow(const float *from, bf16 *to, int64_t stride, int64_t rows, int64_t width) {
    __mmask16 mask = first_of_16(width);
    for (int64_t i = 0; i < rows; i++) {
        __m256i value = (__m256i)_mm512_cvtneps_pbh(_mm512_load_ps(from + i * WIDE));
        _mm256_mask_storeu_epi16(to + i * stride, mask, value);
    }
}

/* low[rows, 16 c .. 16 (c + 2)] = x @ A: two column tiles at once where two full ones are left, otherwise one. */
AMX static void shrink_tiles(const bf16 *x, int64_t x_stride, const Weights *w, int64_t rows, int64_t c, bf16 *low,
                             int64_t low_stride) {
    float sums[2][ROWS * WIDE] __attribute__((aligned(64)));
    int64_t last = at_most(w->rank, (c + 2) * WIDE);
    for (int64_t column = c * WIDE; column < last;) {
        int two = last - column == 2 * WIDE;
        int64_t width = at_most(last - column, WIDE);
        const bf16 *a = w->a + column * w->depth, *next = a + WIDE * w->depth;
        Shapes shapes = {.palette = 1};
        shape(&shapes, 0, rows, width * 4);
        shape(&shapes, 1, rows, width * 4);
        shape(&shapes, 2, rows, DEPTH * 2);
        shape(&shapes, 3, DEPTH / 2, width * 4);
        shape(&shapes, 4, DEPTH / 2, width * 4);
        _tile_loadconfig(&shapes);
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t k = 0; k < w->depth; k += DEPTH) {
            _tile_loadd(2, x + k, x_stride * sizeof(bf16));
            _tile_loadd(3, a + k * width, width * 4);
            _tile_dpbf16ps(0, 2, 3);
            if (two) {
                _tile_loadd(4, next + k * WIDE, WIDE * 4);
                _tile_dpbf16ps(1, 2, 4);
            }
        }
        _tile_stored(0, sums[0], WIDE * 4);
        narrow(sums[0], low + column, low_stride, rows, width);
        if (two) {
            _tile_stored(1, sums[1], WIDE * 4);
            narrow(sums[1], low + column + WIDE, low_stride, rows, WIDE);
        }
        column += two ? 2 * WIDE : WIDE;
    }
}

/* y[rows, 32 columns] += two tiles of sums. */
AMX static void accumulate_two(const float *first, const float *second, bf16 *y, int64_t y_stride, const int64_t *row,
                               int64_t rows) {
    for (int64_t i = 0; i < rows; i++) {
        bf16 *at = y + row[i] * y_stride;
        __m512i old = _mm512_loadu_si512(at);
        __m512 low = _mm512_add_ps(widened(_mm512_castsi512_si256(old)), _mm512_load_ps(first + i * WIDE));
        __m512 high = _mm512_add_ps(widened(_mm512_extracti64x4_epi64(old, 1)), _mm512_load_ps(second + i * WIDE));
        _mm512_storeu_si512(at, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

/* y[rows, columns] += one tile of sums, of which at most 16 columns count. */
AMX static void accumulate_one(const float *sums, bf16 *y, int64_t y_stride, const int64_t *row, int64_t rows,
                               int64_t columns) {
    __mmask16 mask = first_of_16(columns);
    for (int64_t i = 0; i < rows; i++) accumulate(_mm512_load_ps(sums + i * WIDE), y + row[i] * y_stride, mask);
}

/* Tile numbers are part of the instruction, so loops over them are written out. */
#define FOR_TILES(DO) DO(0) DO(1) DO(2) DO(3)
#define FULL_STEP(T)                                         \
    if (T < tiles) {                                         \
        _tile_loadd(5, b + T * size, WIDE * 4);              \
        _tile_dpbf16ps(T, 4, 5);                             \
    }
#define LAST_STEP(T)                                         \
    if (T < tiles) {                                         \
        _tile_loadd(7, b + T * size, WIDE * 4);              \
        _tile_dpbf16ps(T, 6, 7);                             \
    }
#define TAKE(T)                                              \
    if (T < tiles) _tile_stored(T, sums[T], WIDE * 4);

/* y[rows, 16 first .. 16 last] += low @ B, four column tiles at a time. */
AMX static void expand_tiles(const bf16 *low, int64_t low_stride, const Part *part, int64_t first, int64_t last, bf16 *y,
                             int64_t y_stride, const int64_t *row, int64_t rows) {
    float sums[4][ROWS * WIDE] __attribute__((aligned(64)));
    int64_t size = part->rank * WIDE, full = part->rank / DEPTH * DEPTH, rest = part->rank - full;
    Shapes shapes = {.palette = 1};
    for (int tile = 0; tile < 5; tile++) shape(&shapes, tile, rows, 64);
    shape(&shapes, 5, DEPTH / 2, WIDE * 4);
    if (rest) {
        shape(&shapes, 6, rows, rest * 2);
        shape(&shapes, 7, rest / 2, WIDE * 4);
    }
    _tile_loadconfig(&shapes);
    for (int64_t j = first; j < last; j += 4) {
        int64_t tiles = at_most(last - j, 4);
        const bf16 *b = part->b + j * size;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t k = 0; k < full; k += DEPTH, b += DEPTH * WIDE) {
            _tile_loadd(4, low + k, low_stride * sizeof(bf16));
            FOR_TILES(FULL_STEP)
        }
        if (rest) {
            _tile_loadd(6, low + full, low_stride * sizeof(bf16));
            FOR_TILES(LAST_STEP)
        }
        FOR_TILES(TAKE)
        for (int64_t tile = 0; tile < tiles; tile++) {
            int64_t column = (j + tile) * WIDE;
            if (tile + 1 < tiles && column + 2 * WIDE <= part->outputs) {
                accumulate_two(sums[tile], sums[tile + 1], y + column, y_stride, row, rows);
                tile++;
            } else {
                accumulate_one(sums[tile], y + column, y_stride, row, rows, part->outputs - column);
            }
        }
    }
}

/* Other libraries in this process use tiles too, and some remember what shapes they set. So these are put back. */
AMX static Shapes shapes_now(void) {
    Shapes shapes;
    _tile_storeconfig(&shapes);
    return shapes;
}

AMX static void put_back(const Shapes *shapes) {
    if (shapes->palette) {
        _tile_loadconfig(shapes);
    } else {
        _tile_release();
    }
}

/* --- The two products on vectors, for at most ROWS rows */

/* sums[r][t] = x[r] . column tile t, for a number of rows and tiles that is known when this is compiled. */
AVX SHAPED void multiply(const int rows, const int tiles, __m512 *sums, const bf16 *x, int64_t x_stride, const bf16 *w,
                         int64_t w_size, int64_t width, int64_t k) {
    __mmask16 mask = first_of_16(width);
    UNROLL for (int i = 0; i < rows * tiles; i++) sums[i] = _mm512_setzero_ps();
    for (int64_t pair = 0; pair < k / 2; pair++, x += 2, w += 2 * width) {
        __m512bh weights[4];
        UNROLL for (int t = 0; t < tiles; t++) weights[t] = (__m512bh)_mm512_maskz_loadu_epi32(mask, w + t * w_size);
        UNROLL for (int r = 0; r < rows; r++) {
            int32_t two;
            memcpy(&two, x + r * x_stride, sizeof two);
            __m512bh value = (__m512bh)_mm512_set1_epi32(two);
            UNROLL for (int t = 0; t < tiles; t++) {
                sums[r * tiles + t] = _mm512_dpbf16_ps(sums[r * tiles + t], weights[t], value);
            }
        }
    }
}

AVX SHAPED void shrink_block(const int rows, const int tiles, const bf16 *x, int64_t x_stride, const Weights *w,
                             int64_t column, int64_t width, bf16 *low, int64_t low_stride) {
    __m512 sums[16];
    multiply(rows, tiles, sums, x, x_stride, w->a + column * w->depth, WIDE * w->depth, width, w->depth);
    UNROLL for (int i = 0; i < rows * tiles; i++) {
        bf16 *to = low + i / tiles * low_stride + column + i % tiles * WIDE;
        _mm256_mask_storeu_epi16(to, first_of_16(width), (__m256i)_mm512_cvtneps_pbh(sums[i]));
    }
}

AVX SHAPED void expand_block(const int rows, const int tiles, const bf16 *low, int64_t low_stride, const Part *part,
                             int64_t tile, bf16 *y, int64_t y_stride, const int64_t *row) {
    __m512 sums[16];
    int64_t size = part->rank * WIDE;
    multiply(rows, tiles, sums, low, low_stride, part->b + tile * size, size, WIDE, part->rank);
    UNROLL for (int i = 0; i < rows * tiles; i++) {
        int64_t column = (tile + i % tiles) * WIDE;
        accumulate(sums[i], y + row[i / tiles] * y_stride + column, first_of_16(part->outputs - column));
    }
}

/* Call DO(rows, ...) for blocks of 8, 4, 2 and 1 rows, or of 4, 2 and 1. */
#define EIGHTS(DO, ...)                                                    \
    for (; at + 8 <= rows; at += 8) DO(8, __VA_ARGS__);                    \
    FOURS(DO, __VA_ARGS__)
#define FOURS(DO, ...)                                                     \
    for (; at + 4 <= rows; at += 4) DO(4, __VA_ARGS__);                    \
    if (at + 2 <= rows) DO(2, __VA_ARGS__), at += 2;                       \
    if (at < rows) DO(1, __VA_ARGS__)
#define SHRINK(ROWS, TILES) \
    shrink_block(ROWS, TILES, x + at * x_stride, x_stride, w, column, width, low + at * low_stride, low_stride)
#define EXPAND(ROWS, TILES) \
    expand_block(ROWS, TILES, low + at * low_stride, low_stride, part, j, y, y_stride, row + at)

AVX static void shrink_vectors(const bf16 *x, int64_t x_stride, const Weights *w, int64_t rows, int64_t c, bf16 *low,
                               int64_t low_stride) {
    int64_t last = at_most(w->rank, (c + 2) * WIDE);
    for (int64_t column = c * WIDE, at = 0; column < last; at = 0) {
        int64_t width = at_most(last - column, WIDE);
        if (last - column == 2 * WIDE) {
            EIGHTS(SHRINK, 2);
            column += 2 * WIDE;
        } else {
            EIGHTS(SHRINK, 1);
            column += WIDE;
        }
    }
}

AVX static void expand_vectors(const bf16 *low, int64_t low_stride, const Part *part, int64_t first, int64_t last,
                               bf16 *y, int64_t y_stride, const int64_t *row, int64_t rows) {
    for (int64_t j = first, at = 0; j < last; at = 0) {
        if (last - j >= 4) {
            FOURS(EXPAND, 4);
            j += 4;
        } else {
            FOURS(EXPAND, 1);
            j += 1;
        }
    }
}

/* --- Which of them this process uses */

typedef struct {
    const char *name;
    void (*shrink)(const bf16 *, int64_t, const Weights *, int64_t, int64_t, bf16 *, int64_t);
    void (*expand)(const bf16 *, int64_t, const Part *, int64_t, int64_t, bf16 *, int64_t, const int64_t *, int64_t);
} Unit;

static const Unit TILES = {"AMX tiles", shrink_tiles, expand_tiles};
static const Unit VECTORS = {"AVX-512 vectors", shrink_vectors, expand_vectors};
static const Unit *unit;

/* --- All of a batch, shared among threads */

/* A thread's share of the pieces of work, which every thread counts in the same order. */
typedef struct {
    int64_t first, last, at;
} Share;

static Share share_of(int64_t count, int64_t thread, int64_t threads) {
    return (Share){count * thread / threads, count * (thread + 1) / threads, 0};
}

static int is_mine(Share *share) {
    int64_t at = share->at++;
    return at >= share->first && at < share->last;
}

/* A block of rows of x: where it lies if that will do, otherwise a copy, filled up with zeros. */
static const bf16 *block_of_x(const Job *job, const Weights *w, const int64_t *row, int64_t rows, int64_t thread,
                              int64_t *stride) {
    int side_by_side = w->inputs == w->depth;
    for (int64_t i = 1; i < rows && side_by_side; i++) side_by_side = row[i] == row[0] + i;
    if (side_by_side) {
        *stride = job->x_stride;
        return job->x + row[0] * job->x_stride;
    }
    bf16 *copy = job->gathered + thread * job->gathered_size;
    for (int64_t i = 0; i < rows; i++) {
        memcpy(copy + i * w->depth, job->x + row[i] * job->x_stride, w->inputs * sizeof(bf16));
        memset(copy + i * w->depth + w->inputs, 0, (w->depth - w->inputs) * sizeof(bf16));
    }
    *stride = w->depth;
    return copy;
}

static int64_t shrink_pieces(const Weights *w, int64_t rows) {
    return pieces(rows, ROWS) * pieces(w->rank, 2 * WIDE);
}

static int64_t expand_pieces(const Weights *w, int64_t rows) {
    int64_t count = 0;
    for (int64_t i = 0; i < w->parts; i++) count += pieces(w->part[i].outputs, CHUNK * WIDE);
    return pieces(rows, ROWS) * count;
}

static int64_t count_pieces(const Job *job, int64_t (*of)(const Weights *, int64_t)) {
    int64_t count = 0;
    for (int64_t g = 0; g < job->plan->groups; g++) {
        const Weights *w = job->weights[job->plan->group[g].slot];
        if (w) count += of(w, job->plan->group[g].rows);
    }
    return count;
}

static void shrink_group(const Job *job, const Group *group, const Weights *w, int64_t thread, Share *share) {
    for (int64_t at = 0; at < group->rows; at += ROWS) {
        int64_t rows = at_most(group->rows - at, ROWS), stride = 0;
        const int64_t *row = job->rows + group->first + at;
        bf16 *low = job->low + (group->first + at) * job->low_stride;
        const bf16 *x = NULL;
        for (int64_t c = 0; c < pieces(w->rank, WIDE); c += 2) {
            if (!is_mine(share)) continue;
            if (!x) x = block_of_x(job, w, row, rows, thread, &stride);
            unit->shrink(x, stride, w, rows, c, low, job->low_stride);
        }
    }
}

static void expand_group(const Job *job, const Group *group, const Weights *w, Share *share) {
    for (int64_t at = 0; at < group->rows; at += ROWS) {
        int64_t rows = at_most(group->rows - at, ROWS);
        const int64_t *row = job->rows + group->first + at;
        const bf16 *low = job->low + (group->first + at) * job->low_stride;
        for (const Part *part = w->part; part < w->part + w->parts; part++) {
            int64_t tiles = pieces(part->outputs, WIDE);
            for (int64_t j = 0; j < tiles; j += CHUNK) {
                if (!is_mine(share)) continue;
                unit->expand(low + part->low, job->low_stride, part, j, at_most(j + CHUNK, tiles), job->y + part->column,
                             job->y_stride, row, rows);
            }
        }
    }
}

static void shrink_all(const Job *job, int64_t thread, int64_t threads) {
    Share share = share_of(count_pieces(job, shrink_pieces), thread, threads);
    for (const Group *group = job->plan->group; group < job->plan->group + job->plan->groups; group++) {
        const Weights *w = job->weights[group->slot];
        if (w) shrink_group(job, group, w, thread, &share);
    }
}

static void expand_all(const Job *job, int64_t thread, int64_t threads) {
    Share share = share_of(count_pieces(job, expand_pieces), thread, threads);
    for (const Group *group = job->plan->group; group < job->plan->group + job->plan->groups; group++) {
        const Weights *w = job->weights[group->slot];
        if (w) expand_group(job, group, w, &share);
    }
}

static void keeping_shapes(void (*work)(const Job *, int64_t, int64_t), const Job *job, int64_t thread, int64_t threads) {
    if (unit != &TILES) {
        work(job, thread, threads);
        return;
    }
    Shapes before = shapes_now();
    work(job, thread, threads);
    put_back(&before);
}

/* --- Threads: those of the OpenMP runtime that PyTorch brought along, because vLLM has bound them to cores */

static void (*omp_parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*omp_thread)(void);
static int (*omp_threads)(void);

static void shrink_thread(void *job) { keeping_shapes(shrink_all, job, omp_thread(), omp_threads()); }
static void expand_thread(void *job) { keeping_shapes(expand_all, job, omp_thread(), omp_threads()); }

static void run(Job *job, int64_t threads) {
    if (threads > 1) {
        omp_parallel(shrink_thread, job, (unsigned)threads, 0);
        omp_parallel(expand_thread, job, (unsigned)threads, 0);
    } else {
        keeping_shapes(shrink_all, job, 0, 1);
        keeping_shapes(expand_all, job, 0, 1);
    }
}

/* --- The module */

static __thread bf16 *scratch; /* kept, so that a step allocates nothing */
static __thread int64_t scratch_size;

static int make_room(Job *job, int64_t threads) {
    int64_t rank = 0, depth = 0;
    for (int64_t g = 0; g < job->plan->groups; g++) {
        const Weights *w = job->weights[job->plan->group[g].slot];
        if (w && w->rank > rank) rank = w->rank;
        if (w && w->depth > depth) depth = w->depth;
    }
    job->low_stride = pieces(rank, DEPTH) * DEPTH;
    job->gathered_size = ROWS * depth;
    int64_t size = job->plan->rows * job->low_stride + threads * job->gathered_size;
    if (size > scratch_size) {
        free(scratch);
        scratch = aligned_alloc(64, pieces(size * sizeof(bf16), 64) * 64);
        scratch_size = scratch ? size : 0;
    }
    job->low = scratch;
    job->gathered = scratch + job->plan->rows * job->low_stride;
    return scratch != NULL;
}

static PyObject *add(PyObject *module, PyObject *args) {
    long long weights, plan, y, y_stride, x, x_stride, threads;
    (void)module;
    if (!PyArg_ParseTuple(args, "LLLLLLL", &weights, &plan, &y, &y_stride, &x, &x_stride, &threads)) return NULL;
    Job job = {.weights = (const Weights *const *)weights, .plan = (const Plan *)plan, .y = (bf16 *)y,
               .y_stride = y_stride, .x = (const bf16 *)x, .x_stride = x_stride};
    job.rows = (const int64_t *)(job.plan->group + job.plan->groups);
    if (!count_pieces(&job, shrink_pieces)) Py_RETURN_NONE;
    if (!omp_parallel) threads = 1;
    if (!make_room(&job, threads)) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    run(&job, threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static int has(unsigned leaf, unsigned sub, int reg, int bit) {
    unsigned at[4];
    return __get_cpuid_count(leaf, sub, &at[0], &at[1], &at[2], &at[3]) && at[reg] >> bit & 1;
}

enum { EAX, EBX, ECX, EDX };

/* AVX512-BF16, and what belongs to it on every CPU that has it; and that the kernel of Linux saves its registers. */
static int has_vectors(void) {
    return has(7, 1, EAX, 5) && has(7, 0, EBX, 16) && has(7, 0, EBX, 30) && has(7, 0, EBX, 31) &&
           __builtin_cpu_supports("avx512f");
}

/* A process may use tiles once it has asked: ARCH_REQ_XCOMP_PERM for tile data. */
static int has_tiles(void) {
    return has(7, 0, EDX, 22) && has(7, 0, EDX, 24) && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

static const Unit *const UNITS[] = {&TILES, &VECTORS};
static int usable[2];

static void find_units(void) {
    usable[1] = has_vectors();
    usable[0] = usable[1] && has_tiles();
    unit = usable[0] ? &TILES : usable[1] ? &VECTORS : NULL;
}

static PyObject *units(PyObject *module, PyObject *unused) {
    PyObject *names = PyList_New(0);
    (void)module, (void)unused;
    for (int i = 0; i < 2 && names; i++) {
        PyObject *name = usable[i] ? PyUnicode_FromString(UNITS[i]->name) : NULL;
        if (name && PyList_Append(names, name) != 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *choose(PyObject *module, PyObject *args) {
    const char *name;
    (void)module;
    if (!PyArg_ParseTuple(args, "s", &name)) return NULL;
    for (int i = 0; i < 2; i++) {
        if (usable[i] && strcmp(UNITS[i]->name, name) == 0) {
            unit = UNITS[i];
            Py_RETURN_NONE;
        }
    }
    return PyErr_Format(PyExc_ValueError, "no '%s' here", name);
}

static void find_openmp(void) {
    omp_parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))dlsym(RTLD_DEFAULT, "GOMP_parallel");
    omp_thread = (int (*)(void))dlsym(RTLD_DEFAULT, "omp_get_thread_num");
    omp_threads = (int (*)(void))dlsym(RTLD_DEFAULT, "omp_get_num_threads");
    if (!omp_thread || !omp_threads) omp_parallel = NULL;
}

#else

static void *omp_parallel;
static void find_units(void) {}
static void find_openmp(void) {}
static PyObject *add(PyObject *module, PyObject *args) {
    (void)module, (void)args;
    PyErr_SetString(PyExc_RuntimeError, "not on this platform");
    return NULL;
}
static PyObject *choose(PyObject *module, PyObject *args) { return add(module, args); }
static PyObject *units(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyList_New(0);
}

#endif

static PyObject *parallel(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyBool_FromLong(omp_parallel != NULL);
}

static PyMethodDef methods[] = {
    {"add", add, METH_VARARGS, "add(weights, plan, y, y_stride, x, x_stride, threads): addresses, and strides in elements."},
    {"units", units, METH_NOARGS, "What `add` can compute with on this machine, the fastest first; it begins with that."},
    {"choose", choose, METH_VARARGS, "choose(unit): let `add` compute with another of the units, for tests."},
    {"parallel", parallel, METH_NOARGS, "Whether PyTorch's OpenMP threads were found; without them `add` uses one."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    find_openmp();
    find_units();
    return PyModule_Create(&definition);
}
