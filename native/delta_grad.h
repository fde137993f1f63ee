// The gradient of a row of the delta rule. States are kept at most once in KEPT_TOKENS tokens. From the
// last of them to the first, the chunks that follow it are computed anew, and then taken backwards.
#pragma once

#include "delta_adjoint.h"

namespace kt {
namespace KT_ISA {

template <class T> class DeltaGradient {
  public:
    DeltaGradient(const DeltaSizes<T>& s, const DeltaRuleGradient& g)
        : s(s), p(s.p), g(g), chunk(s, arena), state(s, arena), G(s, arena), panel(chunk), adjoint(s, chunk, arena),
          all_u(arena.take<T>((KEPT_TOKENS + CHUNK + s.rows) * s.Ms)),
          all_plain(arena.take<T>((KEPT_TOKENS + CHUNK + s.rows) * s.Ms)),
          row_out(arena.take<T>(std::max(s.ds, s.Ms))) {}

    void run(int64_t r, Control& control) {
        cut(r);
        const int64_t size = s.d * s.M, count = int64_t(kept.size());
        const T* given = p.state ? static_cast<const T*>(p.state) + r * size : nullptr;
        const T* states = static_cast<const T*>(p.states);
        if (states) {
            states += r * ((p.tokens + KEPT_TOKENS - 1) / KEPT_TOKENS) * size;
        } else {
            own.resize(std::size_t(count * size));
            keep_states(r, given, control);
            states = own.data();
        }
        T* d_state = g.d_state ? static_cast<T*>(g.d_state) + r * size : nullptr;
        G.clear();
        if (d_state) G.take(d_state);
        for (int64_t i = count - 1; i >= 0 && !control.stopped(); --i) {
            const std::size_t from = kept[std::size_t(i)];
            const std::size_t to = i + 1 < count ? kept[std::size_t(i + 1)] : pieces.size();
            replay(r, states + i * size, from, to);
            for (std::size_t at = to; at-- > from && !control.stopped();) back(r, pieces[at], pieces[from].t);
        }
        if (d_state) G.give(d_state);
    }

  private:
    struct Piece {
        int64_t t, n;
        int64_t turned;  // the number of its transposed state; −1: the state is 0
    };

    // The row's chunks, and those before which a state is kept.
    void cut(int64_t r) {
        pieces.clear();
        kept.clear();
        for (int64_t t = 0, n; t < p.tokens; t += n) {
            n = s.extent(r, t);
            if (t >= int64_t(kept.size()) * KEPT_TOKENS) kept.push_back(pieces.size());
            pieces.push_back({t, n, -1});
        }
    }

    void keep_states(int64_t r, const T* given, Control& control) {
        state.read(given);
        std::size_t next = 0;
        for (std::size_t at = 0; at < pieces.size() && at <= kept.back(); ++at) {
            if (control.stopped()) return;
            const auto [t, n, turned] = pieces[at];
            if (s.restarts(r, t)) state.clear();
            if (next < kept.size() && kept[next] == at) state.write(own.data() + int64_t(next++) * s.d * s.M);
            if (at == kept.back()) return;
            chunk.form(r, t, n, false);
            if (chunk.tokens.any) pass(all_u, all_plain, true);
        }
    }

    // Solves the chunk, and takes the state to its end.
    void pass(T* u, T* plain, bool advances) {
        adjoint.form_written();
        const T* w = s.erases ? adjoint.w : u;
        for (int64_t c = 0; c < s.Mp; c += s.W) {
            panel.solve(state.panel(c), c, w + c, u + c, s.Ms, plain + c);
            if (advances) panel.advance(state.panel(c), w + c, u + c, s.Ms);
        }
    }

    void replay(int64_t r, const T* first, std::size_t from, std::size_t to) {
        state.read(first);
        int64_t used = 0;
        for (std::size_t at = from; at < to; ++at) {
            Piece& piece = pieces[at];
            if (s.restarts(r, piece.t)) state.clear();
            else {
                piece.turned = used++;
                if (int64_t(turned.size()) < used) turned.push_back(arena.take<T>(s.dp * s.Mp));
                adjoint.turn(state.data, turned[std::size_t(piece.turned)]);
            }
            chunk.form(r, piece.t, piece.n, at + 1 == to);  // the last is at once taken back
            const int64_t row = (piece.t - pieces[from].t) * s.Ms;
            if (chunk.tokens.any) pass(all_u + row, all_plain + row, at + 1 < to);
        }
        formed = to - 1;
    }

    void back(int64_t r, const Piece& piece, int64_t first) {
        if (&piece != &pieces[formed]) chunk.form(r, piece.t, piece.n, true);
        formed = pieces.size();
        if (chunk.tokens.any) {
            load(r, piece, (piece.t - first) * s.Ms);
            adjoint.run(G, piece.turned < 0 ? nullptr : turned[std::size_t(piece.turned)]);
        }
        write(r, piece);
        if (s.restarts(r, piece.t)) G.clear();
    }

    void load(int64_t r, const Piece& piece, int64_t at) {
        std::copy(all_u + at, all_u + at + piece.n * s.Ms, adjoint.u);
        std::copy(all_plain + at, all_plain + at + piece.n * s.Ms, adjoint.plain);
        for (int64_t i = 0; i < s.rows; ++i) {
            T* to = adjoint.d_out + i * s.Ms;
            const bool there = i < piece.n && !chunk.tokens.hidden[std::size_t(i)];
            if (there) read_numbers(g.d_output.at(r, piece.t + i), p.output_type, g.d_output.element, s.M, to);
            std::fill(to + (there ? s.M : 0), to + s.Ms, T(0));
            if (i < piece.n) continue;
            for (T* y : {adjoint.u, adjoint.plain, adjoint.d_z}) std::fill(y + i * s.Ms, y + (i + 1) * s.Ms, T(0));
        }
    }

    // Writes the gradients of a chunk's tokens.
    void write(int64_t r, const Piece& piece) {
        const DeltaTokens<T>& tokens = chunk.tokens;
        const int64_t ds = s.ds;
        for (int64_t i = 0; i < piece.n; ++i) {
            const int64_t t = piece.t + i, at = i * ds;
            if (tokens.hidden[std::size_t(i)]) {
                write_nothing(r, t);
                continue;
            }
            T *q = adjoint.d_q + at, *k = adjoint.d_k + at, *e = adjoint.d_e + at, *x = adjoint.d_x + at;
            if (!s.reads)
                for (int64_t f = 0; f < s.dp; f += LANES<T>) store(k + f, KT_ISA::load(k + f) + KT_ISA::load(e + f));
            unscale(tokens.q + at, T(p.scale), tokens.root_q[i], q);
            unscale(tokens.k + at, T(1), tokens.root_k[i], k);
            if (s.erases) multiply(x, T(-1), s.dp);
            put(g.d_q, p.type, r, t, s.d, q);
            put(g.d_k, p.type, r, t, s.d, k);
            if (s.reads) put(g.d_read, p.type, r, t, s.d, e);
            if (s.erases) put(g.d_erase, p.type, r, t, s.d, x);
            for (int64_t c = 0; c < s.Mp; c += LANES<T>) {
                const Vec<T> y = s.erases ? KT_ISA::load(adjoint.d_w + i * s.Ms + c) * tokens.beta[i]
                                          : -KT_ISA::load(adjoint.d_z + i * s.Ms + c);
                store(row_out + c, y);
            }
            put(g.d_v, p.type, r, t, s.M, row_out);
            put(g.d_beta, type_of<T>, r, t, 1, adjoint.d_beta + i);
            put(g.d_log_decay, type_of<T>, r, t, p.decay_width, adjoint.d_log_decay(i));
        }
    }

    // The gradient of x from that of y = scale · root · x, in place; root is 1 / √(Σx² + 1e-6), if any.
    void unscale(const T* y, T scale, T root, T* d) const {
        if (!p.normalize) {
            if (scale != T(1)) multiply(d, scale, s.dp);
            return;
        }
        Vec<T> both{};
        for (int64_t f = 0; f < s.dp; f += LANES<T>) both += KT_ISA::load(y + f) * KT_ISA::load(d + f);
        const T along = scale == T(0) ? T(0) : sum<T>(both) / scale;
        for (int64_t f = 0; f < s.dp; f += LANES<T>)
            store(d + f, (KT_ISA::load(d + f) * scale - KT_ISA::load(y + f) * along) * root);
    }

    void put(const View& view, Type type, int64_t r, int64_t t, int64_t width, const T* x) const {
        if (view.data) write_numbers(view.at(r, t), type, view.element, width, x);
    }

    void write_nothing(int64_t r, int64_t t) {
        std::fill(row_out, row_out + std::max(s.ds, s.Ms), T(0));
        for (const View* view : {&g.d_q, &g.d_k, &g.d_erase, &g.d_read}) put(*view, p.type, r, t, s.d, row_out);
        put(g.d_v, p.type, r, t, s.M, row_out);
        put(g.d_beta, type_of<T>, r, t, 1, row_out);
        put(g.d_log_decay, type_of<T>, r, t, p.decay_width, row_out);
    }

    Arena arena;
    const DeltaSizes<T>& s;
    const DeltaRule& p;
    const DeltaRuleGradient& g;
    DeltaChunk<T> chunk;
    DeltaState<T> state, G;
    DeltaPanel<T> panel;
    DeltaAdjoint<T> adjoint;
    T *all_u, *all_plain;      // of the chunks after a state that was kept
    T* row_out;
    std::vector<T*> turned;    // the states before those chunks, transposed
    std::vector<T> own;        // states that are kept here
    std::vector<Piece> pieces;
    std::vector<std::size_t> kept;
    std::size_t formed = 0;    // the piece that `chunk` holds with its outputs
};

}  // namespace KT_ISA
}  // namespace kt
