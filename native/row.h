// One row of keys and values (a batch index and a key head) and the queries that look at it, block
// by block. Within a block the sums are those of one small matrix product; between blocks there is
// the state (`Sums`). A block ends at a multiple of C, at a restart, or where decays and
// log-scales since its first token would leave the range in which they can be factored:
//
//     weight of key j in row i  =  φ(qᵢ)·φ(kⱼ) · e^{bᵢ} · e^{sⱼ − ref − bⱼ}
//
// with bⱼ the decay since the block's first token, sⱼ the log-scale of key j and ref that of the
// first key. Nothing of this depends on later tokens.
#pragma once

#include <algorithm>
#include <limits>

#include "near.h"

namespace kt {
namespace KT_ISA {

constexpr double INF = std::numeric_limits<double>::infinity();
template <class T> constexpr double RANGE = sizeof(T) == 4 ? 30 : 200;  // of exponents in a block
constexpr int64_t SPAN = 64;           // tokens of a block of full attention
constexpr int64_t BLOCK = KT_VECTOR_BYTES == 64 ? 32 : 48;  // of causal: whole tiles, little above the diagonal
constexpr int64_t LONG_BLOCK = 192;    // where a state does not stay in the cache
constexpr int64_t PANEL = 16384;       // numbers in a panel of features of the quadratic map

template <class T> struct Sizes {
    const Problem& p;
    int64_t d, m, M, Mp, C, Cp, panel;
    bool has_scale, decays, by_feature, quadratic, pairs;

    explicit Sizes(const Problem& problem) : p(problem) {
        d = p.features.inputs;
        m = p.features.count;
        M = p.width;
        Mp = round_up(M, TILE_COLUMNS<T>);
        quadratic = p.features.map == Map::quadratic;
        C = p.chunk > 0 ? std::min(p.chunk, SPAN) : quadratic || !p.causal ? SPAN : BLOCK;
        if (p.chunk == 0 && m == 0) C = std::max(NEAR_BLOCK / p.groups / BLOCK, int64_t(1)) * BLOCK;
        if (p.chunk == 0 && quadratic && m * Mp * 12 > (256 << 10)) C = LONG_BLOCK;  // beyond L2
        Cp = round_up(C, TILE_COLUMNS<T>);
        panel = quadratic ? std::min(m, std::max<int64_t>(PANEL / Cp, 6) / 6 * 6) : m;
        has_scale = p.log_scale != nullptr;
        decays = p.decay_width > 0;
        by_feature = p.decay_width > 1;
        pairs = sizeof(T) == 4 && !has_scale && !decays && !p.restart.data;
    }
};

// What one block of a row adds to the sums, and then the sums before that block.
template <class T> struct Stop {
    std::vector<T> u, z;
    std::vector<uint8_t> bad;
};

// U and Z of a row: in float64, and in the type of arithmetic to multiply with. Where sums are only
// ever added to (Sizes::pairs), U is not kept up: it is u + rest, two floats that add faster.
template <class T> struct Sums {
    double *U = nullptr, *Z = nullptr;
    T *u = nullptr, *z = nullptr, *rest = nullptr;
    double ref = -INF;  // their log-scale
    std::vector<uint8_t> bad;
    bool any_bad = false;

    Sums(const Sizes<T>& s, Arena& arena)
        : U(arena.take<double>(s.m * s.Mp)), Z(arena.take<double>(s.m)),
          u(arena.take<T>(s.m * s.Mp)), z(arena.take<T>(s.m)),
          rest(s.pairs ? arena.take<T>(s.m * s.Mp) : nullptr), bad(std::size_t(s.M + 1)) {}

    void read(const Sizes<T>& s, const double* sums) {
        for (int64_t r = 0; r < s.m; ++r) {
            for (int64_t c = 0; c < s.Mp; ++c) U[r * s.Mp + c] = c < s.M ? sums[r * (s.M + 1) + c] : 0;
            Z[r] = sums[r * (s.M + 1) + s.M];
        }
    }

    void write(const Sizes<T>& s, double* sums) const {
        for (int64_t r = 0; r < s.m; ++r) {
            for (int64_t c = 0; c < s.M; ++c) {
                const int64_t i = r * s.Mp + c;
                sums[r * (s.M + 1) + c] = rest ? double(u[i]) + double(rest[i]) : U[i];
            }
            sums[r * (s.M + 1) + s.M] = Z[r];
        }
    }

    // The state before row r, which a call that goes backwards through its tokens has none of.
    void begin(const Sizes<T>& s, int64_t r) {
        if (s.p.reversed) return forget(s);
        read(s, s.p.sums + r * s.m * (s.M + 1));
        narrow(s);
        if (s.has_scale) ref = s.p.log_scale[r];
        set_bad(s.p.bad ? s.p.bad + r * (s.M + 1) : nullptr);
    }

    // And after it.
    void end(const Sizes<T>& s, int64_t r) const {
        write(s, s.p.sums + r * s.m * (s.M + 1));
        if (s.has_scale) s.p.log_scale[r] = ref;
        if (s.p.bad) std::copy(bad.begin(), bad.end(), s.p.bad + r * (s.M + 1));
    }

    // u, z = U, Z in the type of arithmetic; row r times factor[r], or all times factor[0].
    void narrow(const Sizes<T>& s, const double* factor = nullptr, bool by_row = false) {
        for (int64_t r = 0; r < s.m; ++r) {
            const double f = factor ? factor[by_row ? r : 0] : 1;
            if (f == 0) {  // forgotten, whatever it was
                for (int64_t c = 0; c < s.Mp; ++c) u[r * s.Mp + c] = 0;
                z[r] = 0;
                continue;
            }
            for (int64_t c = 0; c < s.Mp; ++c) u[r * s.Mp + c] = T(U[r * s.Mp + c] * f);
            z[r] = T(Z[r] * f);
        }
        for (int64_t i = 0; i < s.m * s.Mp && rest; ++i) rest[i] = T(U[i] - double(u[i]));
    }

    // As before the first token.
    void forget(const Sizes<T>& s) {
        std::fill(U, U + s.m * s.Mp, 0.0);
        std::fill(Z, Z + s.m, 0.0);
        narrow(s);
        ref = -INF;
        set_bad(nullptr);
    }

    // f() with the sums that a stop has, to be read.
    template <class F> void lent(Stop<T>& stop, F&& f) {
        T* const own[] = {u, z};
        u = stop.u.data();
        z = stop.z.data();
        set_bad(stop.bad.data());
        f();
        u = own[0];
        z = own[1];
    }

    void set_bad(const uint8_t* flags) {
        any_bad = false;
        for (std::size_t c = 0; c < bad.size(); ++c) any_bad |= (bad[c] = flags ? flags[c] : 0) != 0;
    }
};

// wide += acc (all factors 1), or wide = wide·keep + acc·add; narrow gets the result.
template <class T>
KT_INLINE void accumulate(double* wide, T* narrow, Vec<T> acc, bool scaled, double keep, double add) {
    if constexpr (sizeof(T) == 8) {
        Vec<double> x = load(wide);
        x = scaled ? (keep == 0 ? Vec<double>{} : x * keep) + acc * add : x + acc;
        store(wide, x);
        store(narrow, (Vec<T>)x);
    } else {
        constexpr int H = LANES<float> / 2;
        typedef float half __attribute__((vector_size(KT_VECTOR_BYTES / 2)));
        half part[2];
        __builtin_memcpy(part, &acc, sizeof acc);
        half out[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            Vec<double> x = load(wide + i * H), y = __builtin_convertvector(part[i], Vec<double>);
            x = scaled ? (keep == 0 ? Vec<double>{} : x * keep) + y * add : x + y;
            store(wide + i * H, x);
            out[i] = __builtin_convertvector(x, half);
        }
        __builtin_memcpy(narrow, out, sizeof out);
    }
}

// narrow + rest += acc: what the sum loses by rounding is the new rest (Knuth's two-sum).
template <class T> KT_INLINE void accumulate_pair(T* narrow, T* rest, Vec<T> acc) {
    const Vec<T> x = load(narrow), y = acc + load(rest);
    const Vec<T> sum = x + y, added = sum - x;
    store(narrow, sum);
    store(rest, (x - (sum - added)) + (y - added));
}

// wide += a·b in float64.
template <class T> KT_INLINE void add_product(double* wide, Vec<T> a, Vec<T> b) {
    if constexpr (sizeof(T) == 8) {
        store(wide, load(wide) + a * b);
    } else {
        constexpr int H = LANES<float> / 2;
        typedef float half __attribute__((vector_size(KT_VECTOR_BYTES / 2)));
        half x[2], y[2];
        __builtin_memcpy(x, &a, sizeof a);
        __builtin_memcpy(y, &b, sizeof b);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i)
            store(wide + i * H, load(wide + i * H) + __builtin_convertvector(x[i], Vec<double>) *
                                                         __builtin_convertvector(y[i], Vec<double>));
    }
}

// eˣ of float64 exponents: what float32 loses of the exponent is a factor 1 + (the rest).
template <class T> KT_INLINE Vec<T> exp_wide(const double* x) {
    T hi[LANES<T>], lo[LANES<T>];
    for (int l = 0; l < LANES<T>; ++l) {
        hi[l] = T(x[l]);
        lo[l] = T(x[l] - double(hi[l]));
    }
    Vec<T> y = exp<false>(load(hi));
    return sizeof(T) == 8 ? y : y + y * load(lo);
}

// Fetches lines of the next block while this one is computed.
struct Prefetch {
    const char* from[5] = {};
    int64_t bytes = 0, at = 0;
    int streams = 0;

    // `count` tokens of a row from t, if they lie close together; all streams have one length.
    void add(const View& view, int64_t row, int64_t t, int64_t count, int64_t width, int64_t size) {
        if (count <= 0 || view.element != size || view.token != width * size || streams == 5) return;
        from[streams++] = view.at(row, t);
        bytes = std::max(bytes, count * width * size);
    }

    KT_INLINE void step(int lines) {  // a line too far is harmless: it is a hint
        for (int i = 0; i < lines && at < bytes; ++i, at += 64)
            for (int a = 0; a < streams; ++a) __builtin_prefetch(from[a] + at, 0, 3);
    }
};

template <class T> class Row {
  public:
    Row(const Sizes<T>& s, bool for_gradient)
        : s(s), p(s.p), map(p.features, s.Cp, arena), for_gradient(for_gradient) {
        const int64_t C = s.Cp;
        const int64_t slack = TILE_VECS * LANES<T>;  // the last row's tiles may read past it
        k_buffer = arena.take<T>(C * s.d);
        q_buffer = arena.take<T>(C * std::max(s.d, s.m));
        v_buffer = arena.take<T>(C * s.Mp);
        x_k = arena.take<T>((s.d + 1) * C + slack);
        x_q = arena.take<T>((s.d + 1) * C + slack);
        phi_k = arena.take<T>(s.panel * C + slack);
        phi_q = arena.take<T>(s.panel * C + slack);
        key = s.has_scale || s.decays ? arena.take<T>(s.panel * C + slack) : phi_k;
        query = s.by_feature ? arena.take<T>(s.panel * C + slack) : phi_q;
        strip = arena.take<T>(TILE_ROWS * C);
        staged = arena.take<T>(TILE_ROWS * s.Mp);
        mixed = arena.take<T>(C * s.Mp);
        keep = arena.take<T>(C);
        ls_k = arena.take<double>(C);
        ls_q = arena.take<double>(C);
        b = arena.take<double>(C * std::max<int64_t>(1, p.decay_width));
        where = arena.take<double>(C);
        exponent = arena.take<double>(C);
        factor = arena.take<T>(C);
        row_factor = arena.take<double>(C);
        den = arena.take<T>(C + TILE_ROWS + LANES<T>);
        enter = arena.take<double>(std::max<int64_t>(1, p.decay_width));
        keep_state = arena.take<double>(std::max<int64_t>(1, p.decay_width));
        add_block = arena.take<double>(std::max<int64_t>(1, p.decay_width));
        bad_here.resize(std::size_t(s.M + 1));
        if (s.quadratic)
            for (T* x : {x_k, x_q})
                for (int64_t j = 0; j < C; ++j) x[j] = 1;
    }

    Arena arena;
    const Sizes<T>& s;
    const Problem& p;
    Mapper<T> map;
    const bool for_gradient;

    // The block at hand.
    int64_t first = 0, count = 0, columns = 0;
    Block<T> k, v, q;
    T *k_buffer, *q_buffer, *v_buffer, *x_k, *x_q, *phi_k, *phi_q, *key, *query, *strip, *staged, *mixed,
        *keep;
    double *ls_k, *ls_q, *b, *where, *exponent;
    T *factor, *den;
    double* row_factor;
    double *enter, *keep_state, *add_block;
    double ref = 0, reference = 0;  // of the keys of the block; of its rows
    double ea = 1, eb = 1;          // what the state's and the block's sums count in a row
    double new_ref = 0;
    bool row_queries = false;  // φ(q) has tokens in rows, not in lanes
    double gain = 0;           // of the query head
    std::vector<uint8_t> bad_here;
    Prefetch prefetch;
    // Where some keys are near: sums over them for the queries of the block, what they are relative
    // to, and the largest exponent near by; and where to put all sums so far, if others follow.
    struct Part {
        const T* mixed = nullptr;
        int64_t stride = 0;
        const T *den = nullptr, *level = nullptr, *top = nullptr;
        const uint8_t *bad = nullptr, *bad_queries = nullptr;  // what a NaN or inf near by reaches, or null
    } part;
    struct Hand {
        T* mixed = nullptr;
        int64_t stride = 0;
        T *den = nullptr, *level = nullptr;
    } hand;

    int64_t tile_columns(int64_t n) const { return round_up(n, TILE_COLUMNS<T>); }

    template <int R, int N, class F> static KT_INLINE void each(F&& f) {
#pragma GCC unroll 8
        for (int a = 0; a < R; ++a)
#pragma GCC unroll 4
            for (int e = 0; e < N; ++e) f(a, e);
    }

    // The next block from token t: of q, k and v, or of q alone (full attention, row r of queries).
    void fetch_ahead(int64_t r, int64_t t, bool queries) {
        prefetch = Prefetch{};
        const int64_t n = std::min(s.C, (queries ? p.queries : p.keys) - t), size = size_of(p.type);
        if (queries || (p.causal && p.groups == 1)) prefetch.add(p.q, r, t, n, s.d, size);
        if (queries) return;
        prefetch.add(p.k, r, t, n, s.d, size);
        prefetch.add(p.v, r, t, n, s.M, size);
    }

    void add_to_z(Sums<T>& sums, const T* from, int64_t r0, int64_t size, bool scaled) {
        for (int64_t r = 0; r < size; r += LANES<T>) {
            const int64_t n = std::min<int64_t>(LANES<T>, size - r);
            Vec<T> total[LANES<T>] = {};
            for (int64_t j = 0; j < columns; j += LANES<T>)
                for (int64_t l = 0; l < n; ++l) total[l] += load(from + (r + l) * s.Cp + j);
            T added[LANES<T>];
            store(added, sums_of<T>(total));
            double* Z = sums.Z + r0 + r;
            for (int64_t l = 0; l < n && scaled; ++l) {
                const int64_t f = s.by_feature ? r0 + r + l : 0;
                Z[l] = (keep_state[f] == 0 ? 0 : Z[l] * keep_state[f]) + double(added[l]) * add_block[f];
            }
            for (int64_t l = 0; l < n && !scaled; ++l) Z[l] += double(added[l]);
            for (int64_t l = 0; l < n; ++l) sums.z[r0 + r + l] = T(Z[l]);
        }
    }

    // How far the block from token t reaches: to the next multiple of its length, counted from the
    // beginning of the text; with decays and restarts, which end blocks anywhere, as far as it may, or
    // every block that ends early would be followed by a short one.
    int64_t extent(int64_t row, int64_t t) {
        if (!p.causal || !(s.decays || p.restart.data))
            return std::min(p.keys - t, s.C - (p.start + t) % s.C);
        const int64_t end = std::min(p.keys, t + s.C);
        const int64_t w = std::max<int64_t>(1, p.decay_width);
        for (int64_t f = 0; f < w; ++f) b[f * s.Cp] = 0;
        for (int64_t j = 1; j < end - t; ++j) {
            if (p.restart.data && *p.restart.at(row, t + j)) return j;
            for (int64_t f = 0; f < w && s.decays; ++f) {
                const double next = b[f * s.Cp + j - 1] + decay(row, t + j, f);
                if (-next > RANGE<T>) return j;
                b[f * s.Cp + j] = next;
            }
        }
        return end - t;
    }

    bool hidden_key(int64_t row, int64_t t) const { return p.mask.data && !*p.mask.at(row, t); }

    // The log-decay before token t, without restarts; a hidden token decays nothing.
    double decay(int64_t row, int64_t t, int64_t f) const {
        if (!s.decays || !p.log_decay.data || hidden_key(row, t)) return 0;
        return double(read<T>(p.log_decay.at(row, t) + f * p.log_decay.element, type_of<T>));
    }

    bool restarts(int64_t row, int64_t t) const {
        return p.restart.data && *p.restart.at(row, t);
    }

    int64_t key_weight(int64_t row) const { return p.features.key_weight(row % p.heads, p.heads); }
    int64_t query_weight(int64_t row) const {
        const int64_t heads = p.heads * p.groups;
        return p.features.query_weight(row % heads, heads);
    }

    // φ in rows or lanes straight from the caller's tokens; false where they need care.
    bool quick(const Block<T>& block, int64_t n, T* out, bool by_rows_) const {
        if (s.d % LANES<T> || block.any_hidden || (!by_rows_ && n % LANES<T>)) return false;
        auto go = [&](auto f) {
            using F = decltype(f);
            return by_rows_ ? map_rows<T, F>(block.x, block.stride, n, s.d, out)
                            : map_columns<T, F>(block.x, block.stride, n, s.d, out, s.Cp);
        };
        switch (p.features.map) {
            case Map::given: return go(IdentityMap<T>{});
            case Map::elu: return go(EluMap<T, true>{});
            case Map::relu: return go(ReluMap<T>{});
            case Map::relu2: return go(Relu2Map<T>{});
            case Map::square: return go(SquareMap<T>{});
            default: return false;
        }
    }

    void positions(const View& view, int64_t row, int64_t t, int64_t n) {
        if (p.features.map != Map::cosformer) return;
        for (int64_t j = 0; j < columns; ++j) {
            where[j] = double(p.start + t + j);
            if (view.data && j < n) {
                double x;
                std::memcpy(&x, view.at(row, t + j), sizeof x);
                where[j] = x;
            }
        }
    }

    void load_keys(int64_t row, int64_t t, int64_t n, double state_ref) {
        load_keys(row, t, n, state_ref, p.k, p.v, p.k_positions);
    }

    void load_keys(int64_t row, int64_t t, int64_t n, double state_ref, const View& keys,
                   const View& values, const View& places) {
        first = t;
        count = n;
        columns = tile_columns(n);
        fetch(keys, p.type, row, t, n, s.d, s.d, T(p.features.root_scale), T(1), p.mask, row, k_buffer, k);
        fetch(values, p.type, row, t, n, s.M, s.Mp, T(1), T(0), p.mask, row, v_buffer, v);
        clean(v, n, s.M, s.Mp, T(0), true, v_buffer);
        const bool done = !(for_gradient && slope_needs_x(p.features.map)) && quick(k, n, phi_k, false);
        if (!done) {
            clean(k, n, s.d, s.d, T(1), false, k_buffer);
            T* x = x_k + (s.quadratic ? s.Cp : 0);
            to_lanes(k.x, k.stride, n, columns, s.d, x, s.Cp);
            positions(places, row, t, n);
            if (!s.quadratic)
                map.phi(x, columns, key_weight(row), where, phi_k, ls_k);
        }
        if (p.k_scale.data)
            for (int64_t j = 0; j < n; ++j) std::memcpy(ls_k + j, p.k_scale.at(row, t + j), 8);
        factors(row, t, state_ref);
        n = count;
        for (int64_t j = 0; j < columns; ++j)
            keep[j] = T(j < n && !(k.any_hidden && k.hidden[std::size_t(j)]));
        if (s.quadratic) return;
        if (key != phi_k) {
            for (int64_t r = 0; r < s.m; ++r) {
                if (s.by_feature) feature_factors(r, true);
                times_factor(phi_k + r * s.Cp, key + r * s.Cp);
            }
        } else if (k.any_hidden || n < columns) {
            for (int64_t r = 0; r < s.m; ++r)
                for (int64_t j = 0; j < columns; ++j)
                    if (keep[j] == 0) phi_k[r * s.Cp + j] = 0;
        }
    }

    // A feature of the block's keys times their factors; 0 of those that do not count.
    KT_INLINE void times_factor(const T* from, T* to) const {
        for (int64_t j = 0; j < columns; j += LANES<T>) {
            const Vec<T> y = load(from + j) * load(factor + j);
            const Ints<T> on = load(keep + j) != Vec<T>{};
            store(to + j, from_bits<T>(bits<T>(y) & on));
        }
    }

    // Keys a … of a line: tokens of the call, or kept from before.
    void load_keys(int64_t row, const Line& line, int64_t a, int64_t n, double state_ref) {
        const int64_t t = line.at(a);
        if (t >= 0)
            load_keys(row, t, n, state_ref);
        else
            load_keys(row, -1 - t, n, state_ref, p.near_k, p.near_v, p.near_positions);
    }

    // No keys in this block: its queries see the state alone.
    void no_keys(double state_ref) {
        count = 0;
        k.any_bad = v.any_bad = false;
        ea = eb = 1;
        reference = s.has_scale && state_ref > -INF ? state_ref : 0;
    }

    // The factors of feature r, of keys or of queries, into `factor`.
    void feature_factors(int64_t r, bool of_keys) {
        for (int64_t j = 0; j < columns; ++j) {
            const double decayed = j < count ? b[r * s.Cp + j] : 0;
            exponent[j] = of_keys ? (s.has_scale && keep[j] != 0 ? ls_k[j] - ref : 0) - decayed : decayed;
        }
        for (int64_t j = 0; j < columns; j += LANES<T>) store(factor + j, exp_wide<T>(exponent + j));
    }

    // ref, ea, eb and the factors of keys, rows and state; may cut the block short.
    void factors(int64_t row, int64_t t, double state_ref) {
        const int64_t w = std::max<int64_t>(1, p.decay_width);
        ref = reference = new_ref = 0;
        ea = eb = 1;
        for (int64_t f = 0; f < w; ++f) enter[f] = keep_state[f] = add_block[f] = 1;
        if (!s.has_scale && !s.decays) return;
        if (restarts(row, t)) state_ref = -INF;  // forgotten, whatever it was
        bool seen = false;
        for (int64_t j = 0; j < count; ++j) {
            if (hidden_key(row, t + j)) continue;
            if (!s.has_scale) break;
            if (!seen) {
                ref = ls_k[j];
                seen = true;
            }
            double least_b = 0;
            for (int64_t f = 0; f < p.decay_width; ++f) least_b = std::min(least_b, b[f * s.Cp + j]);
            if (ls_k[j] - ref - least_b > RANGE<T>) {
                count = j;
                columns = tile_columns(count);
                break;
            }
        }
        if (s.has_scale && !seen) ref = -INF;
        // What the state goes through: the decay before the first token, then that of the block.
        double slowest_in = -INF, slowest_all = -INF;
        const bool gone = restarts(row, t);
        for (int64_t f = 0; f < w; ++f) {
            enter[f] = gone ? -INF : s.decays ? decay(row, t, f) : 0;
            keep_state[f] = enter[f] + (s.decays ? b[f * s.Cp + count - 1] : 0);
            slowest_in = std::max(slowest_in, enter[f]);
            slowest_all = std::max(slowest_all, keep_state[f]);
        }
        double log_block = 0;
        if (s.has_scale) {
            const double from_state = state_ref + slowest_in;
            reference = std::max(from_state, ref);
            if (reference == -INF) reference = 0;
            eb = std::exp(ref - reference);
            new_ref = state_ref + slowest_all;
            for (int64_t j = 0; j < count; ++j) {
                if (hidden_key(row, t + j)) continue;
                double slowest = s.decays ? -INF : 0;
                for (int64_t f = 0; f < p.decay_width; ++f)
                    slowest = std::max(slowest, b[f * s.Cp + count - 1] - b[f * s.Cp + j]);
                new_ref = std::max(new_ref, ls_k[j] + slowest);
            }
            const double safe = new_ref == -INF ? 0 : new_ref;
            log_block = ref - safe;
            for (int64_t f = 0; f < w; ++f) {
                keep_state[f] = std::exp(keep_state[f] + state_ref - safe);
                enter[f] = std::exp(enter[f] + state_ref - reference);
            }
        } else {
            for (int64_t f = 0; f < w; ++f) {
                keep_state[f] = std::exp(keep_state[f]);
                enter[f] = std::exp(enter[f]);
            }
        }
        for (int64_t f = 0; f < w; ++f)
            add_block[f] = std::exp(log_block + (s.decays ? b[f * s.Cp + count - 1] : 0));
        if (ref == -INF) eb = 0;
        for (int64_t f = 0; f < w && ref == -INF; ++f) add_block[f] = 0;
        ea = s.by_feature ? 1 : enter[0];
        for (int64_t j = 0; j < count; ++j) {
            const double bj = s.decays && !s.by_feature ? b[j] : 0;
            const double lj = s.has_scale && ref > -INF && !hidden_key(row, t + j) ? ls_k[j] - ref : 0;
            exponent[j] = lj - bj;
        }
        for (int64_t j = count; j < columns; ++j) exponent[j] = 0;
        for (int64_t j = 0; j < columns; j += LANES<T>) store(factor + j, exp_wide<T>(exponent + j));
    }

    // φ of the queries of the block (causal: its own tokens), of query row `row`.
    void load_queries(int64_t row, int64_t mask_row, int64_t t, int64_t n, const View& mask) {
        columns = tile_columns(n);
        if (s.m == 0) {  // no far part: `near` has the queries
            q.any_bad = q.any_hidden = false;
            return;
        }
        if (p.gain) gain = p.gain[row % (p.heads * p.groups)];
        fetch(p.q, p.type, row, t, n, s.d, s.d, T(p.features.root_scale), T(1), mask, mask_row, q_buffer, q);
        const bool rows_first = !for_gradient && elementwise(p.features.map) && !s.by_feature;
        row_queries = rows_first && quick(q, n, phi_q, true);
        const bool done = row_queries || (for_gradient && !slope_needs_x(p.features.map) &&
                                          quick(q, n, phi_q, false));
        if (done && !row_queries && n < columns)  // the gradient sums over whole tiles
            for (int64_t r = 0; r < s.m; ++r) std::fill_n(phi_q + r * s.Cp + n, columns - n, T(0));
        if (!done) {
            clean(q, n, s.d, s.d, T(1), false, q_buffer);
            T* x = x_q + (s.quadratic ? s.Cp : 0);
            to_lanes(q.x, q.stride, n, columns, s.d, x, s.Cp);
            positions(p.q_positions, row, t, n);
            if (!s.quadratic) map.phi(x, columns, query_weight(row), where, phi_q, ls_q);
        }
        if (p.q_scale.data)
            for (int64_t j = 0; j < n; ++j) std::memcpy(ls_q + j, p.q_scale.at(row, t + j), 8);
        if (s.by_feature && p.causal)
            for (int64_t r = 0; r < s.m; ++r) {
                feature_factors(r, false);
                for (int64_t j = 0; j < columns; j += LANES<T>)
                    store(query + r * s.Cp + j, load(phi_q + r * s.Cp + j) * load(factor + j));
            }
        if (!p.normalize)
            for (int64_t j = 0; j < n; ++j) {
                const double logs = (s.has_scale ? ls_q[j] + reference : 0) +
                                    (s.decays && !s.by_feature && p.causal ? b[j] : 0);
                row_factor[j] = logs == 0 ? 1 : std::exp(logs);
            }
    }

    // t = q·k → c0 + c1·t + c2·t²
    KT_INLINE Vec<T> polynomial(Vec<T> t) const {
        const Features& f = p.features;
        return (t * T(f.c2) + T(f.c1)) * t + T(f.c0);
    }

    // tile(i.., j..) of weights within the block: zero above the diagonal, whatever stood there.
    template <int R, int N> KT_INLINE void weights(Tile<T, R, N>& tile, int64_t i, int64_t j) const {
        tile.clear();
        if (s.quadratic) {
            tile.add(x_q + s.Cp + i, 1, s.Cp, x_k + s.Cp + j, s.Cp, s.d);
            for (int a = 0; a < R; ++a)
                for (int c = 0; c < N; ++c) tile.acc[a][c] = polynomial(tile.acc[a][c]);
        } else if (row_queries) {
            tile.add(phi_q + i * s.m, s.m, 1, key + j, s.Cp, s.m);
        } else {
            tile.add(query + i, 1, s.Cp, key + j, s.Cp, s.m);
        }
        finish_weights<R, N>(tile, i, j);
    }

    template <int R, int N>
    KT_INLINE void finish_weights(Tile<T, R, N>& tile, int64_t i, int64_t j) const {
        if (s.quadratic && (s.decays || k.any_hidden)) {
            for (int c = 0; c < N; ++c) {
                const Vec<T> f = s.decays ? load(factor + j + c * LANES<T>) : splat(T(1));
                const Ints<T> on = load(keep + j + c * LANES<T>) != Vec<T>{};
                for (int a = 0; a < R; ++a)
                    tile.acc[a][c] = from_bits<T>(bits<T>(tile.acc[a][c] * f) & on);
            }
        }
        if (eb != 1)
            for (int a = 0; a < R; ++a)
                for (int c = 0; c < N; ++c) tile.acc[a][c] *= T(eb);
        if (j + N * LANES<T> > i + 1) {
            Ints<T> lane;
            for (int l = 0; l < LANES<T>; ++l) lane[l] = l;
#pragma GCC unroll 8
            for (int a = 0; a < R; ++a)
#pragma GCC unroll 4
                for (int c = 0; c < N; ++c) {
                    const Ints<T> past = (lane + (int)(j + c * LANES<T> - i - a)) <= 0;
                    tile.acc[a][c] = from_bits<T>(bits<T>(tile.acc[a][c]) & past);
                }
        }
    }

    // den = ea · φ(q)·z for the rows of the block.
    void state_normalizer(const T* z, int64_t n) {
        if (row_queries) {
            for (int64_t i = 0; i < n; i += LANES<T>) {
                Vec<T> total[LANES<T>] = {};
                for (int64_t r = 0; r < s.m; r += LANES<T>)
#pragma GCC unroll 16
                    for (int l = 0; l < LANES<T>; ++l)
                        total[l] += load(phi_q + (i + l) * s.m + r) * load(z + r);
                store(den + i, sums_of<T>(total) * T(ea));
            }
            return;
        }
        // Whether φ(q) comes in rows also depends on later tokens, so the order must not.
        const bool as_rows = elementwise(p.features.map) && !s.by_feature && s.m % LANES<T> == 0;
        for (int64_t j = 0; j < columns; j += LANES<T>) {
            Vec<T> part[LANES<T>] = {};
            for (int64_t r = 0; r < s.m && !as_rows; ++r) part[0] += load(query + r * s.Cp + j) * z[r];
            for (int64_t r = 0; r < s.m && as_rows; r += LANES<T>)
                for (int l = 0; l < LANES<T>; ++l)
                    part[l] += load(query + (r + l) * s.Cp + j) * z[r + l];
            for (int half = LANES<T> / 2; half && as_rows; half /= 2)
                for (int l = 0; l < half; ++l) part[l] += part[l + half];
            store(den + j, part[0] * T(ea));
        }
    }

    // Quadratic: mixed and den from the state, a panel of features at a time.
    void state_panels(const Sums<T>& sums, int64_t n) {
        std::fill(den, den + columns, T(0));
        for (int64_t r = 0; r < s.m; r += s.panel) {
            const int64_t size = std::min(s.panel, s.m - r);
            map.panel(x_q, columns, r, size, phi_q);
            for (int64_t j = 0; j < columns; j += LANES<T>) {
                Vec<T> total = load(den + j);
                for (int64_t f = 0; f < size; ++f) total += load(phi_q + f * s.Cp + j) * sums.z[r + f];
                store(den + j, total);
            }
            by_rows(n, [&](auto rows, int64_t i) {
                constexpr int R = decltype(rows)::value;
                by_cols<T>(s.Mp, [&](auto cols, int64_t c) {
                    constexpr int N = decltype(cols)::value;
                    Tile<T, R, N> tile;
                    for (int a = 0; a < R; ++a)
                        for (int e = 0; e < N; ++e)
                            tile.acc[a][e] =
                                r ? load(mixed + (i + a) * s.Mp + c + e * LANES<T>) : Vec<T>{};
                    tile.add(phi_q + i, 1, s.Cp, sums.u + r * s.Mp + c, s.Mp, size);
                    for (int a = 0; a < R; ++a)
                        for (int e = 0; e < N; ++e)
                            store(mixed + (i + a) * s.Mp + c + e * LANES<T>, tile.acc[a][e]);
                });
            });
        }
        for (int64_t j = 0; j < columns; ++j) den[j] *= T(ea);
    }

    // Outputs of query row `row` for the n tokens from t; `inside`: they also see the block's keys.
    void read_out(Sums<T>& sums, int64_t row, int64_t t, int64_t n, bool inside, bool stream) {
        const bool use_state = ea != 0 && s.m > 0;
        if (!use_state)
            std::fill(den, den + columns, T(0));
        else if (s.quadratic)
            state_panels(sums, n);
        else
            state_normalizer(sums.z, n);
        const T* values = v.x;
        for (int64_t i = 0; i < n && p.zero; ++i) p.zero[p.slot(row, t + i)] = 0;
        const bool straight = s.M == s.Mp && direct<T>(p.output, p.output_type, row, s.M);
        by_rows(n, [&](auto rows, int64_t i) {
            constexpr int R = decltype(rows)::value;
            const int64_t limit = inside ? i + R : 0;
            constexpr int RP = (R + LANES<T> - 1) / LANES<T> * LANES<T>;
            Vec<T> row_sum[RP] = {};
            for (int64_t j = 0; j < limit; j += TILE_VECS * LANES<T>) {
                Tile<T, R, TILE_VECS> tile;
                weights<R, TILE_VECS>(tile, i, j);
#pragma GCC unroll 8
                for (int a = 0; a < R; ++a)
#pragma GCC unroll 4
                    for (int c = 0; c < TILE_VECS; ++c) {
                        store(strip + a * s.Cp + j + c * LANES<T>, tile.acc[a][c]);
                        row_sum[a] += tile.acc[a][c];
                    }
            }
            T share[RP], near_share[RP] = {};
            const bool near = part.mixed;
            const bool special = near ? near_shares<R, RP>(row, t, i, limit ? row_sum : nullptr, share, near_share)
                                      : shares<R, RP>(row, t, i, limit ? row_sum : nullptr, share);
            by_cols<T>(s.Mp, [&](auto cols, int64_t c) {
                constexpr int N = decltype(cols)::value;
                Tile<T, R, N> tile;
                prefetch.step(6);
                tile.clear();
                if (use_state) {
                    if (s.quadratic) {
                        for (int a = 0; a < R; ++a)
                            for (int e = 0; e < N; ++e)
                                tile.acc[a][e] = load(mixed + (i + a) * s.Mp + c + e * LANES<T>);
                    } else if (row_queries) {
                        tile.add(phi_q + i * s.m, s.m, 1, sums.u + c, s.Mp, s.m);
                    } else {
                        tile.add(query + i, 1, s.Cp, sums.u + c, s.Mp, s.m);
                    }
                    if (ea != 1)
                        for (int a = 0; a < R; ++a)
                            for (int e = 0; e < N; ++e) tile.acc[a][e] *= T(ea);
                }
                if (limit) tile.add(strip, s.Cp, 1, values + c, v.stride, limit);
                T* out[R];
                for (int a = 0; a < R; ++a)
                    out[a] = hand.mixed ? hand.mixed + (i + a) * hand.stride + c
                             : straight ? reinterpret_cast<T*>(p.output.at(row, t + i + a)) + c
                                      : staged + a * s.Mp + c;
#pragma GCC unroll 8
                for (int a = 0; a < R; ++a)
#pragma GCC unroll 4
                    for (int e = 0; e < N; ++e) {
                        // Adding 0 makes −0, which the zeros above the diagonal could, +0.
                        Vec<T> y = tile.acc[a][e] * share[a] + T(0);
                        if (near)
                            y += load(part.mixed + (i + a) * part.stride + c + e * LANES<T>) * near_share[a];
                        else if (special && divided(share[a], i + a))
                            y = tile.acc[a][e] / den[i + a] + T(0);
                        if (stream && straight)
                            stream_store(out[a] + e * LANES<T>, y);
                        else
                            store(out[a] + e * LANES<T>, y);
                    }
            });
            for (int a = 0; a < R; ++a)
                if (!straight && !hand.mixed)
                    write_token(p.output, p.output_type, row, t + i + a, s.M, staged + a * s.Mp);
            for (int a = 0; a < R && special; ++a) settle(row, t, i + a, share[a]);
        });
        if (hand.mixed) return;
        if (sums.any_bad || v.any_bad || k.any_bad || q.any_bad || part.bad || part.bad_queries)
            spoil(sums, row, t, n, inside);
    }

    // The logarithm of the unit of far weights in query i of the block; `top` is the largest near by.
    double far_scale(int64_t i, double top) const {
        return gain + (p.relative && top > -INF ? top : 0) + (s.has_scale ? ls_q[i] + reference : 0);
    }

    // The same where there is a near part: what the far and the near sums of rows i … are to be
    // multiplied by. Both are brought to the larger of their scales first.
    template <int R, int RP>
    KT_INLINE bool near_shares(int64_t row, int64_t t, int64_t i, Vec<T>* row_sum, T* share, T* near_share) {
        bool special = q.any_hidden;
        for (int a = 0; a < RP; a += LANES<T>)
            if (row_sum) store(den + i + a, load(den + i + a) + sums_of<T>(row_sum + a));
        for (int a = 0; a < R; ++a) {
            const double top = part.level[i + a], near_den = part.den[i + a], far_den = s.m ? den[i + a] : 0;
            const double far_log = s.m ? far_scale(i + a, part.top[i + a]) : -INF;
            double level = top, of_near = 1, of_far = 0;
            if (top == -INF) {
                of_near = 0;
                of_far = far_log > -INF;
                level = far_log > -INF ? far_log : 0;
            } else if (far_log > -INF) {
                // A far part of next to nothing must not set the scale.
                const double size = std::fabs(far_den) > 1e-30 ? 0 : std::log(std::fabs(far_den));
                const double above = far_log + size - top;
                if (above > 0) {
                    level = far_log + size;
                    of_near = std::exp(T(-above));
                    of_far = std::exp(-size);
                } else {
                    of_far = std::exp(T(std::min(far_log - top, 80.0)));
                }
            }
            const double total = of_far * far_den + of_near * near_den;
            if (hand.mixed) {
                hand.den[i + a] = T(total);
                hand.level[i + a] = level == 0 && of_near == 0 && of_far == 0 ? T(-INF) : T(level);
                share[a] = T(of_far);
                near_share[a] = T(of_near);
                continue;
            }
            // A sum of 0 is told by den, which `settle` looks at.
            den[i + a] = T(total);
            const double unit = p.normalize ? total == 0 ? 0 : 1 / total : std::exp(level);
            // Finite: sums over no keys are 0, whatever their scale would be.
            const double high = double(std::numeric_limits<T>::max());
            share[a] = T(std::min(of_far * unit, high));
            near_share[a] = T(std::min(of_near * unit, high));
            special |= p.normalize && total == 0;
            if (p.normalize && total != 0 && den[i + a] == 0) den[i + a] = std::numeric_limits<T>::min();
            if (p.near_normalizer) {
                const int64_t at = p.slot(row, t + i + a);
                p.near_reference[at] = p.normalize ? level : 0;
                p.near_normalizer[at] = p.normalize ? total : 1;
                p.near_top[at] = part.top[i + a];
            }
        }
        return special;
    }

    // 1 / normaliser, or the factor of an output that is not normalised, of rows i …; whether one of
    // them needs more than a product.
    template <int R, int RP>
    KT_INLINE bool shares(int64_t row, int64_t t, int64_t i, Vec<T>* row_sum, T* share) {
        bool special = q.any_hidden;
        if (!p.normalize) {
            for (int a = 0; a < R; ++a) special |= (share[a] = T(row_factor[i + a])) == 0;
            for (int a = 0; a < R && p.normalizer; ++a)
                p.normalizer[row * p.queries + t + i + a] = row_factor[i + a];
            return special;
        }
#pragma GCC unroll 2
        for (int a = 0; a < RP; a += LANES<T>) {
            Vec<T> all = load(den + i + a);
            if (row_sum) all += sums_of<T>(row_sum + a);
            store(den + i + a, all);
            store(share + a, T(1) / all);
        }
        for (int a = 0; a < R; ++a) special |= std::isinf(share[a]);
        for (int a = 0; a < R && p.normalizer; ++a)
            p.normalizer[row * p.queries + t + i + a] = double(den[i + a]);
        return special;
    }

    // A normaliser so small that it has no reciprocal.
    bool divided(T share, int64_t i) const { return p.normalize && std::isinf(share) && den[i] != 0; }

    // Rows that need more than a product: hidden ones, and those with a normaliser of 0.
    void settle(int64_t row, int64_t t, int64_t i, T share) {
        const bool hidden = q.any_hidden && q.hidden[std::size_t(i)];
        const bool zero = p.normalize && den[i] == 0 && !hidden;
        if (p.zero && zero) p.zero[p.slot(row, t + i)] = 1;
        if (hidden || (!p.normalize && share == 0)) return fill_out(row, t + i, T(0));
        if (zero) fill_out(row, t + i, T(p.zero_fill));
    }

    void fill_out(int64_t row, int64_t t, T value) {
        for (int64_t c = 0; c < s.M; ++c)
            write<T>(p.output.at(row, t) + c * p.output.element, p.output_type, value);
    }

    static KT_INLINE void stream_store(T* to, Vec<T> v) {
#if KT_VECTOR_BYTES == 64
        _mm512_stream_si512((__m512i*)to, (__m512i)v);
#elif KT_VECTOR_BYTES == 32
        _mm256_stream_si256((__m256i*)to, (__m256i)v);
#elif defined(__SSE2__)
        _mm_stream_si128((__m128i*)to, (__m128i)v);
#else
        store(to, v);
#endif
    }

    // NaN in every output that depends on a NaN or inf: of q its row, of k later rows, of v later
    // rows of its column.
    void spoil(Sums<T>& sums, int64_t row, int64_t t, int64_t n, bool inside) {
        std::copy(sums.bad.begin(), sums.bad.end(), bad_here.begin());
        if (inside && restarts(row / p.groups, t)) std::fill(bad_here.begin(), bad_here.end(), 0);
        for (int64_t i = 0; i < n; ++i) {
            if (inside) add_bad(i, bad_here);
            if (q.any_hidden && q.hidden[std::size_t(i)]) continue;
            const uint8_t* close = part.bad ? part.bad + i * (s.M + 1) : nullptr;
            const bool whole = (q.any_bad && q.bad[std::size_t(i)]) || (part.bad_queries && part.bad_queries[i]);
            for (int64_t c = 0; c < s.M; ++c)
                if (whole || bad_here[std::size_t(c)] || (close && close[c]))
                    write<T>(p.output.at(row, t + i) + c * p.output.element, p.output_type,
                             std::numeric_limits<T>::quiet_NaN());
            if (p.zero && (whole || bad_here[std::size_t(s.M)] || (close && close[s.M]))) p.zero[p.slot(row, t + i)] = 0;
        }
    }

    void spoil_columns(int64_t row, int64_t t, const std::vector<uint8_t>& flags) {
        for (int64_t c = 0; c < s.M; ++c)
            if (flags[std::size_t(c)])
                write<T>(p.output.at(row, t) + c * p.output.element, p.output_type,
                         std::numeric_limits<T>::quiet_NaN());
        if (p.zero && flags[std::size_t(s.M)]) p.zero[p.slot(row, t)] = 0;
    }

    void add_bad(int64_t j, std::vector<uint8_t>& flags) const {
        if (k.any_bad && k.bad[std::size_t(j)]) std::fill(flags.begin(), flags.end(), 1);
        if (v.any_bad)
            for (int64_t c = 0; c < s.M; ++c) flags[std::size_t(c)] |= v.bad[std::size_t(j * s.M + c)];
    }

    // What the block's keys add to the sums; `own` is for the doing of it.
    void absorb(Sums<T>& own, int64_t row, Stop<T>& stop) {
        std::fill(own.Z, own.Z + s.m, 0.0);
        own.set_bad(nullptr);
        absorb(own, row, stop.u.data());
        std::copy(own.z, own.z + s.m, stop.z.begin());
        std::copy(own.bad.begin(), own.bad.end(), stop.bad.begin());
    }

    // Adds the block's keys to the sums; with `alone`, puts there what they add to them.
    void absorb(Sums<T>& sums, int64_t row, T* alone = nullptr) {
        const bool scaled = s.has_scale || s.decays || restarts(row, first);
        for (int64_t r0 = 0; r0 < s.m; r0 += s.panel) {
            const int64_t size = std::min(s.panel, s.m - r0);
            if (s.quadratic) {
                map.panel(x_k, columns, r0, size, phi_k);
                for (int64_t r = 0; r < size; ++r)
                    for (int64_t j = 0; j < columns; ++j)
                        phi_k[r * s.Cp + j] = keep[j] == 0   ? T(0)
                                              : s.decays ? phi_k[r * s.Cp + j] * factor[j]
                                                         : phi_k[r * s.Cp + j];
            }
            const T* from = s.quadratic ? phi_k : key;
            by_rows(size, [&](auto rows, int64_t r) {
                constexpr int R = decltype(rows)::value;
                by_cols<T>(s.Mp, [&](auto cols, int64_t c) {
                    constexpr int N = decltype(cols)::value;
                    Tile<T, R, N> tile;
                    prefetch.step(6);
                    auto at = [&](int a, int e) { return (r0 + r + a) * s.Mp + c + e * LANES<T>; };
                    tile.clear();
                    tile.add(from + r * s.Cp, s.Cp, 1, v.x + c, v.stride, count);
                    if (alone)
                        each<R, N>([&](int a, int e) { store(alone + at(a, e), tile.acc[a][e]); });
                    else if (s.pairs)
                        each<R, N>([&](int a, int e) {
                            accumulate_pair<T>(sums.u + at(a, e), sums.rest + at(a, e), tile.acc[a][e]);
                        });
                    else
                        each<R, N>([&](int a, int e) {
                            const int64_t f = s.by_feature ? r0 + r + a : 0, o = at(a, e);
                            accumulate<T>(sums.U + o, sums.u + o, tile.acc[a][e], scaled, keep_state[f],
                                          add_block[f]);
                        });
                });
            });
            add_to_z(sums, from, r0, size, scaled);
        }
        if (s.has_scale) sums.ref = new_ref;
        if (sums.any_bad || k.any_bad || v.any_bad) {
            if (restarts(row, first)) std::fill(sums.bad.begin(), sums.bad.end(), 0);
            for (int64_t j = 0; j < count; ++j) add_bad(j, sums.bad);
            sums.any_bad = false;
            for (uint8_t f : sums.bad) sums.any_bad |= f != 0;
        }
        if (p.decay_total)
            for (int64_t j = 0; j < count; ++j)
                for (int64_t f = 0; f < p.decay_width; ++f)
                    p.decay_total[row * p.decay_width + f] +=
                        restarts(row, first + j) ? -INF : decay(row, first + j, f);
    }

};

}  // namespace KT_ISA
}  // namespace kt
