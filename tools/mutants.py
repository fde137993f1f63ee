"""Check that named tests catch seeded bugs: `make mutants`.

Each mutant is one edit in a copy of the package. Its test runs against the copy and must fail.
Before that, all these tests run against the original package and must pass.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    test: str


MUTANTS = [
    Mutant(
        "the √2 of cross terms dropped",
        "maps/_polynomial.py",
        "index, np.sqrt(multinomial))",
        "index, np.ones_like(multinomial))",
        "test_maps.py::test_quadratic_map_has_the_root_two_on_linear_and_cross_terms",
    ),
    Mutant(
        "Taylor features without 1/r!",
        "maps/_polynomial.py",
        "np.sqrt(multinomial / drop)",
        "np.sqrt(multinomial)",
        "test_maps.py::test_kernel_is_the_gram_matrix_of_the_features[taylor:order=3]",
    ),
    Mutant(
        "maximum over the whole sequence",
        "maps/_favor.py",
        "top = stop_gradient(xp.max(projected, axis=-1, keepdims=True))",
        "top = xp.max(projected, axis=(-2, -1), keepdims=True) + 0 * projected[..., :1]",
        "test_causality.py::test_past_is_bit_identical_when_the_future_changes[favor:features=16]",
    ),
    Mutant(
        "QR without sign(diag R)",
        "maps/_favor.py",
        "q = q * np.sign(np.diagonal(r))",
        "q = q * 1.0",
        "test_random_features.py::test_projections_are_haar_with_chi_lengths",
    ),
    Mutant(
        "χ lengths missing",
        "maps/_favor.py",
        "lengths = np.linalg.norm(rng.standard_normal((d, d)), axis=1)",
        "lengths = np.full(d, np.sqrt(d))",
        "test_random_features.py::test_projections_are_haar_with_chi_lengths",
    ),
    Mutant(
        "trigonometric features scaled by all of m",
        "maps/_favor.py",
        "return both / math.sqrt(projected.shape[-1]), half_norm",
        "return both / math.sqrt(both.shape[-1]), half_norm",
        "test_random_features.py::test_iid_features_are_unbiased_and_have_the_variance_of_theory"
        "[0-trig]",
    ),
    Mutant(
        "hyperbolic features with one sign",
        "maps/_favor.py",
        "xp.concat([projected, -projected], axis=-1)",
        "xp.concat([projected, projected], axis=-1)",
        "test_random_features.py::test_iid_features_are_unbiased_and_have_the_variance_of_theory"
        "[0-hyperbolic]",
    ),
    Mutant(
        "elu(x) + 1, which cancels",
        "maps/_elementwise.py",
        "return xp.exp(xp.minimum(x, zero)) + xp.maximum(x, zero)",
        "return xp.where(x > 0, x, xp.exp(xp.minimum(x, zero)) - 1) + 1",
        "test_maps.py::test_elu_is_within_3_ulp_of_exact_down_to_minus_80_in_float32",
    ),
    Mutant(
        "cosFormer without its sine",
        "maps/_cosformer.py",
        "y * xp.sin(angle)",
        "y * xp.cos(angle)",
        "test_maps.py::test_cosformer_weighs_by_distance",
    ),
    Mutant(
        "mask on values but not on the normaliser",
        "engines/_problem.py",
        "features = blank(features, keep, xp)\n    if log_scale",
        "if log_scale",
        "test_causality.py::TestPads::test_left_and_interior_pads_agree_with_leaving_them_out[chunked]",
    ),
    Mutant(
        "masked tokens still decay the state",
        "engines/_problem.py",
        "log_decay = blank(astype(log_decay, dtype), keep, xp)",
        "log_decay = astype(log_decay, dtype)",
        "test_causality.py::TestPads::test_left_and_interior_pads_agree_with_leaving_them_out[recurrent]",
    ),
    Mutant(
        "NaN and inf not taken out of keys and values",
        "engines/_problem.py",
        "    good = xp.isfinite(x)\n",
        "    return x, None\n    good = xp.isfinite(x)\n",
        "test_nonfinite.py::test_exactly_the_dependent_outputs_become_nan[elu]",
    ),
    Mutant(
        "an ε in the normaliser",
        "engines/_problem.py",
        "output = output / xp.where(empty, xp.ones_like(total), total)",
        "output = output / (total + 1e-6)",
        "test_nonfinite.py::TestVanishingNormalizer::test_tiny_sums_are_not_zero",
    ),
    Mutant(
        "scale instead of its root on q and on k",
        "engines/_problem.py",
        "x * math.sqrt(scale)",
        "x * scale",
        "test_engines.py::test_scale_multiplies_the_products[chunked]",
    ),
    Mutant(
        "query heads dealt out in turn instead of in runs",
        "engines/_problem.py",
        "return xp.reshape(x, (*x.shape[:-3], heads, x.shape[-3] // heads, *x.shape[-2:]))",
        "return xp.reshape(x, (*x.shape[:-3], x.shape[-3] // heads, heads, *x.shape[-2:]))"
        ".swapaxes(-3, -4)",
        "test_engines.py::test_grouped_queries_share_key_heads_in_order",
    ),
    Mutant(
        "row i sees key i + 1",
        "engines/_chunked.py",
        "xp.tril(inside)",
        "xp.tril(inside, k=1)",
        "test_engines.py::test_causal_engines_equal_the_loop[elu]",
    ),
    Mutant(
        "ratios of cumulative products",
        "engines/_chunked.py",
        "    return _Weights(\n        pair=pair,",
        "    grown = xp.exp(since)\n"
        "    pair = xp.where(past, grown[..., :, None, :] / grown[..., None, :, :], 0.0)\n"
        "    return _Weights(\n        pair=pair,",
        "test_engines.py::test_strong_decay_does_not_divide_by_underflow[chunked-float32]",
    ),
    Mutant(
        "Z not decayed between chunks",
        "engines/_chunked.py",
        "sums = wide_add(sums, own[..., c, :, :], factor)",
        "factor = None if factor is None else factor + 0 * own[..., c, :, :]\n"
        "        if factor is not None:\n"
        "            factor = xp.concat([factor[..., :-1], 0 * factor[..., -1:] + 1], axis=-1)\n"
        "        sums = wide_add(sums, own[..., c, :, :], factor)",
        "test_engines.py::test_causal_engines_equal_the_loop[elu]",
    ),
    Mutant(
        "the running maximum does not decay",
        "engines/_chunked.py",
        "scale = xp.maximum(scale + slowest_since[..., c, -1:, :], own[..., c, -1:, :])",
        "scale = xp.maximum(scale, own[..., c, -1:, :])",
        "test_engines.py::test_a_forgotten_scale_does_not_swallow_what_comes_later[chunked]",
    ),
    Mutant(
        "the state summed in float32",
        "_arrays/_wide.py",
        "return Wide(hi + astype(x, xp.float64), None)",
        "return Wide(astype(astype(hi + x, xp.float32), xp.float64), None)",
        "test_engines.py::test_a_million_float32_tokens_lose_nothing",
    ),
    Mutant(
        "the low half of a pair dropped",
        "_arrays/_wide.py",
        "lo = xp.where(xp.isfinite(total), lo + error, xp.zeros_like(total))",
        "lo = xp.zeros_like(total)",
        "test_libraries.py::TestJax::test_sums_without_float64_are_as_good_as_with",
    ),
    Mutant(
        "chunks not padded to full length",
        "_arrays/_scan.py",
        "for first in range(-offset, length, block):\n",
        "for first in range(-offset, length, block):\n"
        "        block = min(block, length - first) if offset == 0 else block\n",
        "test_causality.py::TestPads::test_right_padding_is_bit_equal_to_no_padding[chunked]",
    ),
    Mutant(
        "segments do not restart the state",
        "attention/_arguments.py",
        "changed = ids[..., 1:, :] != ids[..., :-1, :]",
        "changed = ids[..., 1:, :] != ids[..., 1:, :]",
        "test_engines.py::test_segments_restart_the_state[none-elu]",
    ),
    Mutant(
        "merge without the decay of the right half",
        "engines/_merge.py",
        "    factor = decay\n",
        "    factor = None\n",
        "test_state.py::test_merge_is_associative_and_equals_the_whole",
    ),
    Mutant(
        "NaN crosses into the next segment",
        "engines/_chunked.py",
        "seen = (last_bad > 0) & (last_bad >= restarted)",
        "seen = last_bad > 0",
        "test_nonfinite.py::test_nan_does_not_cross_a_segment_and_rides_in_the_state[chunked]",
    ),
    Mutant(
        "NaN of a state is in every segment",
        "engines/_chunked.py",
        "carried = carried & (restarted == 0)",
        "carried = carried & (restarted >= 0)",
        "test_nonfinite.py::test_nan_does_not_cross_a_segment_and_rides_in_the_state[chunked]",
    ),
    Mutant(
        "a key decays by its own decay too",
        "engines/_chunked.py",
        "later = constant(np.tri(size, k=-1, dtype=bool)",
        "later = constant(np.tri(size, dtype=bool)",
        "test_engines.py::test_causal_engines_equal_the_loop[elu]",
    ),
    Mutant(
        "a decoder by the recurrent engine forgets NaN",
        "attention/_decode.py",
        "self._bad[...] = nan.any(axis=-2, keepdims=True)",
        "self._bad[...] = False",
        "test_decoder.py::test_nan_and_inf_spoil_what_they_spoil_in_linear_attention[poly:degree=3]",
    ),
    Mutant(
        "a decoder by the recurrent engine forgets how much has decayed",
        "attention/_decode.py",
        "self._total += log_decay.reshape(self._total.shape)",
        "self._total[...] = log_decay.reshape(self._total.shape)",
        "test_decoder.py::test_decays_before_and_after_may_be_of_other_kinds[recurrent-m]",
    ),
    Mutant(
        "a state after a masked token has one token of a convolution less",
        "engines/_convolution.py",
        "kept = kept - n + xp.sum(astype(keep, index), axis=-2)",
        "kept = kept - n + xp.sum(astype(keep[:, 1:, :], index), axis=-2)",
        "test_sequence.py::test_engines_agree_with_the_loop_over_tokens[short_convolution-direct]",
    ),
    Mutant(
        "the gate of a selective scan without its own factor",
        "engines/_scan.py",
        "y * (z * sigmoid(z))",
        "y * sigmoid(z)",
        "test_sequence.py::test_engines_agree_with_the_loop_over_tokens[selective_scan-recurrent]",
    ),
    Mutant(
        "dense: a state is spoilt for rows that do not see it",
        "engines/_dense.py",
        "xp.expand_dims(data.carry.bad, axis=-3) & sees_state)",
        "xp.expand_dims(data.carry.bad, axis=-3) | (sees_state & False))",
        "test_nonfinite.py::test_nan_does_not_cross_a_segment_and_rides_in_the_state[dense]",
    ),
    Mutant(
        "going back reads one token too many",
        "attention/_history.py",
        "size = min(reading.length, left - start)",
        "size = min(reading.length, left - start + 1)",
        "test_history.py::test_going_back_is_never_having_read",
    ),
    Mutant(
        "states of other maps accepted",
        "attention/_state.py",
        "if state.fingerprint != print_:",
        "if False:",
        "test_state.py::TestRefusals::test_state_of_another_map_scale_or_shape",
    ),
    Mutant(
        "straight-through without its constant",
        "attention/_dense.py",
        "return hard + (soft - stop_gradient(soft))",
        "return hard + stop_gradient(soft - soft)",
        "test_dense_attention.py::TestHard::test_straight_through_has_the_gradient_of_softmax",
    ),
    Mutant(
        "no gradient through the log-scale of a key",
        "maps/_favor.py",
        "return features, astype(top[..., 0], half_norm.dtype) - half_norm",
        "return features, stop_gradient(astype(top[..., 0], half_norm.dtype) - half_norm)",
        "test_gradients.py::test_gradcheck[favor:features=16]",
    ),
    Mutant(
        "Z left out of linear attention's count",
        "costs/_attention.py",
        '"Z": n * phi.features}',
        '"Z": Polynomial()}',
        "test_costs.py::test_numbers_of_the_lectures",
    ),
    Mutant(
        "streamed softmax reads keys once",
        "costs/_attention.py",
        "moved = n * (D + M) + n**2 / B * (D + M)",
        "moved = 2 * n * (D + M)",
        "test_costs.py::test_streamed_softmax_moves_and_holds_what_its_steps_do",
    ),
    Mutant(
        "a chunk counted at its own length",
        "costs/_cost.py",
        'sizes["n"] = -(-sizes["n"] // sizes["C"]) * sizes["C"]',
        'sizes["n"] = sizes["n"]',
        "test_costs.py::test_the_engine_does_the_multiply_adds_that_are_counted[causal-forward-elu-0]",
    ),
    Mutant(
        "relations among sizes ignored",
        "costs/_order.py",
        "        if small in used and large in used:",
        "        if False:",
        "test_costs.py::test_leading_terms_drop_what_others_dominate_and_nothing_else",
    ),
    Mutant(
        "a mean does not bound a product",
        "costs/_order.py",
        "    columns = [[*_exponents(x, names), _ONE] for x in bounds]",
        "    columns = [[*_exponents(x, names), _ONE] for x in bounds[:1]]",
        "test_costs.py::test_means_bound_products",
    ),
    Mutant(
        "n steps are n times the last",
        "costs/_decoding.py",
        'moved=cost.moved.total("n")',
        "moved=cost.moved * n",
        "test_costs.py::test_n_steps_cost_the_sum_of_the_steps[cache]",
    ),
    Mutant(
        "crossover one too early",
        "costs/_crossover.py",
        "(2 * a), 0) + 1",
        "(2 * a), 0)",
        "test_costs.py::test_crossover_is_where_the_counts_cross[4-4-elu]",
    ),
    Mutant(
        "√2 recognised too generously",
        "proofs/_sympy.py",
        "<= 1e-12 * abs(x)",
        "<= 1e-7 * abs(x)",
        "test_proof_maps.py::test_functions_on_arrays_and_on_vectors_are_run_on_symbols",
    ),
    Mutant(
        "the mend is the ratio, not its root",
        "proofs/_monomials.py",
        "factor = sympy.sqrt(sympy.nsimplify(kernel / has))",
        "factor = sympy.nsimplify(kernel / has)",
        "test_proof_maps.py::test_a_mend_makes_the_map_exact",
    ),
    Mutant(
        "too loose counts as true",
        "proofs/_cost.py",
        "    loose = costs.missing_terms(claimed, count, relations)",
        "    loose = costs.missing_terms(claimed, claimed, relations)",
        "test_proof_counts.py::test_an_upper_bound_may_be_loose_and_an_order_may_not",
    ),
    Mutant(
        "swapped operands accepted",
        "proofs/_einsum.py",
        "    if any_order:",
        "    if True:",
        "test_proof_counts.py::test_einsums_are_equal_up_to_the_names_of_indices",
    ),
    Mutant(
        "any power of a distance is conditionally negative definite",
        "proofs/_kernel_rules.py",
        "(is_log or 0 < e < 1)",
        "(is_log or (e > 0 and e != 1))",
        "test_generated_claims.py::test_no_generated_claim_gets_a_wrong_verdict[psd]",
    ),
    Mutant(
        "a tangent needs no point where it touches",
        "proofs/_exponentials.py",
        "    if value is None or value[0] < 0:",
        "    if value is None:",
        "test_generated_claims.py::test_no_generated_claim_gets_a_wrong_verdict[sign]",
    ),
    Mutant(
        "an index from nowhere accepted",
        "proofs/_einsum.py",
        "    if nowhere:",
        "    if False:",
        "test_proof_counts.py::test_einsums_with_an_index_from_nowhere_do_not_run",
    ),
    Mutant(
        "a sign told at the first precision, whatever the enclosure holds",
        "proofs/_number.py",
        'raise UnknownSignError("the sign is unknown at this precision")',
        "return 0",
        "test_proof_arithmetic.py::test_what_has_no_clear_sign_or_no_value_has_none"
        "[\\u221a2*\\u221a2 - 2]",
    ),
    Mutant(
        "an end of an interval reached that is not",
        "proofs/_interval.py",
        "    low: tuple[End, bool] = (bottom, True)",
        "    low: tuple[End, bool] = (bottom, False)",
        "test_proof_signs.py::test_rounding_is_not_a_sign",
    ),
    Mutant(
        "exponents without a bound",
        "proofs/_syntax.py",
        "abs(value) > LARGEST_POWER",
        "abs(value) > 10**9",
        "test_proof_language.py::test_errors_point_at_the_character",
    ),
    Mutant(
        "sum over i<=j for i<j",
        "proofs/_evaluate.py",
        'a < b if sign == "<"',
        'a <= b if sign == "<"',
        "test_proof_identities.py::test_sums_run_over_the_indices_they_name",
    ),
    Mutant(
        "the variance without the means",
        "proofs/_moments.py",
        "own = s * s * t * t + a * a * t * t + b * b * s * s",
        "own = s * s * t * t",
        "test_proof_counts.py::test_moments_agree_with_the_simulation_beside_them",
    ),
    Mutant(
        "a root of a square without its absolute value",
        "proofs/_form.py",
        'result = result * _reduced({("abs", Form({frozenset([(a, _ONE)]): _ONE})): p * e})',
        "result = result * _reduced({a: p * e})",
        "test_proof_arithmetic.py::test_different_expressions_have_different_forms[sqrt(a**2)-a]",
    ),
    Mutant(
        "conditions that a counterexample need not meet",
        "proofs/_statement.py",
        "if not holds(condition, scope[-1]):",
        "if False:",
        "test_proof_arithmetic.py::test_a_point_that_misses_a_condition_breaks_nothing",
    ),
    Mutant(
        "a derivation about nothing",
        "proofs/_identity.py",
        "return derived if speaks_of_something(statement) else NOTHING",
        "return derived",
        "test_proof_hostile.py::test_what_is_defined_nowhere_or_asks_the_impossible_is_undecided",
    ),
    Mutant(
        "keys that cancel but miss a condition",
        "proofs/_witness.py",
        "    if not speaks_of(statement, d, point):",
        "    if False:",
        "test_proof_hostile.py::test_keys_that_cancel_meet_all_conditions",
    ),
    Mutant(
        "a counterexample that is not evaluated again",
        "proofs/_verdict.py",
        "if breaks() is not True:",
        "if False:",
        "test_proof_verdicts.py::test_a_counterexample_that_does_not_break_the_claim_cannot_be_made",
    ),
    Mutant(
        "odd permutations counted like even ones",
        "proofs/_normal.py",
        'result += -part if sign == "<" and odd else part',
        "result += part",
        "test_proof_arithmetic.py::test_sums_in_all_dimensions_are_those_of_each",
    ),
    Mutant(
        "d tried in small dimensions only",
        "proofs/_search.py",
        "top = max(least + 3, least + _zeros(statement) + 1, _largest_number(statement))",
        "top = least + 3",
        "test_proof_maps.py::test_polynomials_in_d_that_vanish_in_small_dimensions_are_refuted_beyond",
    ),
    Mutant(
        "a sum over i<j that is never empty",
        "proofs/_interval.py",
        "may_be_empty=strict > least",
        "may_be_empty=False",
        "test_proof_signs.py::test_signs_are_exact",
    ),
    Mutant(
        "leading axes taken from the first array",
        "proofs/_shapes.py",
        "if x != y and _ONE not in (x, y):",
        "if False:",
        "test_proof_counts.py::test_leading_axes_are_broadcast",
    ),
    Mutant(
        "the time limit not kept",
        "proofs/_prove.py",
        'encoding="utf-8", timeout=timeout',
        'encoding="utf-8", timeout=60',
        "test_proof_verdicts.py::test_what_takes_too_long_is_undecided",
    ),
    Mutant(
        "rounding taken for a negative eigenvalue",
        "proofs/_psd.py",
        "return found is not None and found[0] < 0",
        "return True",
        "test_proof_signs.py::test_the_weights_of_a_counterexample_make_the_gram_matrix_negative",
    ),
    Mutant(
        "a pivot of 0 whose row is not looked at",
        "proofs/_psd_form.py",
        "if any(rows[i][j] for j in range(i, n)):",
        "if False:",
        "test_proof_signs.py::test_elimination_in_fractions_agrees_with_eigenvalues",
    ),
    Mutant(
        "draws that contradict the theory pass",
        "proofs/_random.py",
        "CLEAR = 6.0",
        "CLEAR = 60.0",
        "test_proof_maps.py::test_draws_of_a_function_show_its_bias_and_decide_nothing",
    ),
    Mutant(
        "deep NTK that keeps the first angle",
        "kernels/_network.py",
        "            theta = _next_angle(theta)\n",
        "",
        "test_kernels.py::TestNetworks::test_deep_ntk_is_the_recursion_over_gaussian_layers_by_monte_carlo",
    ),
    Mutant(
        "angles by arccos",
        "kernels/_linalg.py",
        "theta: Floats = 2 * np.arctan2(np.sqrt(apart), np.sqrt(together))",
        "theta = np.arccos(np.clip(u @ v.T, -1, 1))",
        "test_kernels.py::TestNetworks::test_near_points_keep_their_angle",
    ),
    Mutant(
        "distances that cancel",
        "kernels/_linalg.py",
        "        distances[i, j] = np.sum((x[i] - y[j]) ** 2, axis=1)\n",
        "        pass\n",
        "test_kernels.py::TestNetworks::test_distances_do_not_cancel_far_from_the_origin",
    ),
    Mutant(
        "√c missing",
        "kernels/_base.py",
        "None if base is None else features.Weighted(base, math.sqrt(self.factor))",
        "None if base is None else features.Weighted(base, self.factor)",
        "test_kernels.py::TestFeatures::test_features_multiply_to_the_gram_matrix",
    ),
    Mutant(
        "product with shared draws",
        "kernels/_base.py",
        "2 * seed + 1)",
        "2 * seed)",
        "test_kernels.py::TestFeatures::test_factors_of_a_product_have_draws_of_their_own",
    ),
    Mutant(
        "λ taken for Nλ",
        "kernels/_ridge.py",
        "shift = len(where) * self.mean_penalty",
        "shift = self.mean_penalty",
        "test_kernel_methods.py::TestRidge::test_penalties_of_mean_and_sum_differ_by_n",
    ),
    Mutant(
        "determinant without (n − m) log σ²",
        "kernels/_system.py",
        "return found + int(n - m) * math.log(self.shift)",
        "return found",
        "test_kernel_methods.py::TestGaussianProcess::test_likelihood_is_the_gaussian_density_of_the_targets",
    ),
    Mutant(
        "λ for 2λ in the gradient",
        "kernels/_descent.py",
        "slopes + 2 * self.penalty * self.alpha",
        "slopes + self.penalty * self.alpha",
        "test_kernel_methods.py::TestDescent::test_squared_loss_comes_to_the_ridge_solution",
    ),
    Mutant(
        "a gap that is no bound",
        "kernels/_descent.py",
        "/ (4 * self.penalty)",
        "/ (400 * self.penalty)",
        "test_kernel_methods.py::TestDescent::test_gap_bounds_the_distance_to_the_minimum_and_goes_to_zero",
    ),
    Mutant(
        "intercept of LinearSVC left penalised",
        "sklearn/_svm.py",
        "_ROUNDS = 20",
        "_ROUNDS = 1",
        "test_sklearn.py::TestKernelSVC::test_gram_matrix_and_features_give_one_machine",
    ),
    Mutant(
        "scale for its root",
        "sklearn/_features.py",
        "X.dtype.type(math.sqrt(self.scale_))",
        "X.dtype.type(self.scale_)",
        "test_sklearn.py::TestKernelFeatures::test_features_are_those_of_the_map_at_the_scale_of_linear_attention",
    ),
    Mutant(
        "deep kernel: half the determinant",
        "torch/_deep_kernel.py",
        "(n - m) * 2 * self.log_noise",
        "(n - m) * self.log_noise",
        "test_deep_kernel.py::TestProcess::test_likelihood_and_prediction_are_those_of_the_numpy_process",
    ),
    Mutant(
        "bfloat16 weights read as the integers that they travel as",
        "engines/_native_torch.py",
        "bits if name in AS_GIVEN else as_numpy for",
        "bits if name else as_numpy for",
        "test_dtypes.py::test_floating_arguments_count_by_their_values",
    ),
    Mutant(
        "a dtype wider than float64 computed in float32",
        "_arrays/_library.py",
        "xp.finfo(x.dtype).bits > 32",
        "xp.finfo(x.dtype).bits == 64 and x.dtype == xp.float64",
        "test_dtypes.py::test_operators_are_as_good_as_the_dtype_of_their_arrays",
    ),
    Mutant(
        "the core writes into the caller's state",
        "engines/_native.py",
        'sums = call.array("sums", given.sums.astype(np.float64))',
        'sums = call.array("sums", given.sums)',
        "test_state.py::test_state_is_not_changed_by_use",
    ),
    Mutant(
        "stretches of features that end within a block",
        "engines/_stretches.py",
        "edges = [0, *range(step - start % step, n, step), n]",
        "edges = [0, *range(step, n, step), n]",
        "test_native_bits.py::test_a_batch_of_one_is_bit_equal_to_its_row_in_a_batch"
        "[baseline-poly:degree=3]",
    ),
    Mutant(
        "weights that a map keeps out of sight are forgotten",
        "engines/_torch_host.py",
        " or _learned(rule, keys)",
        "",
        "test_native_gradients.py::TestOtherWaysToDifferentiate::test_weights_out_of_sight",
    ),
    Mutant(
        "the gradient of a bias from its first head only",
        "engines/_native_torch.py",
        "d_bias.sum(0, keepdim=True)",
        "d_bias[:1]",
        "test_native_gradients.py::test_gradients_equal_those_of_dense[learned t2r each]",
    ),
    Mutant(
        "a snapshot that goes on changing",
        "attention/_decode.py",
        "carry = Carry(Wide(self._sums.copy(), None)",
        "carry = Carry(Wide(self._sums[...], None)",
        "test_decoder.py::test_prompt_decoder_snapshot_and_back[elu]",
    ),
    Mutant(
        "the decay before the decoder forgotten",
        "attention/_decode.py",
        "self._earlier + self._total if self.decay",
        "0 * self._earlier + self._total if self.decay",
        "test_decoder.py::test_decays_before_and_after_may_be_of_other_kinds[compiled-m]",
    ),
    Mutant(
        "a token without a normaliser not counted",
        "attention/_decode.py",
        "self._stop += 1",
        "self._stop += not vanished",
        "test_decoder.py::TestVanishingNormalizer::test_is_reported_and_the_token_counts[compiled]",
    ),
    Mutant(
        "steps of one decoder at once",
        "attention/_decode.py",
        "self._lock = threading.Lock()",
        "self._lock = __import__('contextlib').nullcontext()",
        "test_decoder.py::test_steps_of_one_decoder_exclude_each_other[elu]",
    ),
    Mutant(
        "a call known without the types of its numbers",
        "attention/_call.py",
        "@functools.lru_cache(maxsize=256, typed=True)",
        "@functools.lru_cache(maxsize=256)",
        "test_call.py::test_what_is_wrong_is_refused_after_what_is_equal_and_right[scale-]",
    ),
    Mutant(
        "variance without the means",
        "simulate/_moments.py",
        "theory_variance=d * (sigma**4 + 2 * mu**2 * sigma**2)",
        "theory_variance=d * sigma**4",
        "test_simulate.py::TestMoments::test_theory_in_numbers",
    ),
    Mutant(
        "scale √d for 1/√d",
        "simulate/_scaling.py",
        "(1.0, 1 / math.sqrt(d))",
        "(1.0, math.sqrt(d))",
        "test_simulate.py::TestScaling::test_entropy_is_that_of_softmax_over_the_keys",
    ),
    Mutant(
        "hyperbolic as positive",
        "simulate/_features.py",
        "found = found * -np.expm1(-together)",
        "pass",
        "test_simulate.py::TestFeatures::test_relative_variance_by_quadrature[0.7-0.4-hyperbolic]",
    ),
    Mutant(
        "limit without cross term",
        "simulate/_features.py",
        "np.diagonal(G) - 2 * Gp + p @ Gp",
        "np.diagonal(G) + p @ Gp",
        "test_simulate.py::TestFeatures::test_covariance_of_errors_by_quadrature",
    ),
    Mutant(
        "overtakes first",
        "simulate/_features.py",
        "row.m > worse[-1]",
        "row.m > worse[0]",
        "test_simulate.py::TestFeatures::test_overtakes_is_where_it_stays_better",
    ),
    Mutant(
        "distance not to ridge",
        "simulate/_representer.py",
        "run.coefficients[record] - best.coefficients",
        "run.coefficients[record]",
        "test_simulate.py::TestRepresenter::test_descent_goes_down_to_it_within_its_bound",
    ),
    Mutant(
        "λ for Nλ",
        "simulate/_representer.py",
        "best = KernelRidge(kernel, mean_penalty=penalty)",
        "best = KernelRidge(kernel, sum_penalty=penalty)",
        "test_simulate.py::TestRepresenter::test_ridge_is_the_linear_system_with_n_lambda",
    ),
    Mutant(
        "attention with learned α",
        "simulate/_svm.py",
        "attended = trained.decision_function(new), attend(kernel, new, x, y)",
        "attended = trained.decision_function(new), attend(kernel, new, x, alpha)",
        "test_simulate.py::TestSVM::test_what_differs",
    ),
    Mutant(
        "a window that is one token longer in the comparison",
        "analysis/_blocks.py",
        "close = (np.abs(rows[:, None] - keys) < problem.rule.window)",
        "close = (np.abs(rows[:, None] - keys) <= problem.rule.window)",
        "test_dial_compare.py::test_weights_are_those_of_linear_attention",
    ),
    Mutant(
        "heads together as the mean of their errors",
        "analysis/_types.py",
        "lost = sum(head.output_error**2 * head.output_energy for head in judged)",
        "lost = sum(head.output_error**2 for head in judged) * judged[0].output_energy",
        "test_compare.py::test_uniform_weights_are_what_a_map_is_measured_against",
    ),
    Mutant(
        "file written in place",
        "_files.py",
        'with part.open("wb") as stream:',
        'with target.open("wb") as stream:',
        "test_writer.py::test_files_keep_their_rights_and_appear_whole",
    ),
    Mutant(
        "a mistake named by the wrong answers alone",
        "labs/grader/_hints.py",
        "compared = values if any(not o.right for o in values) else outcomes",
        "compared = wrong",
        "test_grader_hints.py::TestHints::test_of_a_mistake_asks_that_right_answers_agree_too",
    ),
    Mutant(
        "an answer of another shape taken for right",
        "labs/grader/_compare.py",
        "if found.shape != right.shape or",
        "if found.ndim != right.ndim or",
        "test_grader_hints.py::TestHints::test_comparison",
    ),
    Mutant(
        "near and far: window off by one",
        "engines/_near.py",
        "(xp.abs(query - key.mT) < rule.window)",
        "(xp.abs(query - key.mT) <= rule.window)",
        "test_window.py::test_the_window_alone_is_softmax_attention_under_a_sliding_mask[dense]",
    ),
    Mutant(
        "windows by head: the window of the next head",
        "attention/_heads.py",
        "enumerate(zip(windows, sinks, strict=True))",
        "enumerate(zip(windows[1:] + windows[:1], sinks, strict=True))",
        "test_dial_heads.py::test_native_gives_the_bits_of_separate_calls[float32-causal]",
    ),
    Mutant(
        "windows by head: the next head does without the map",
        "attention/_heads.py",
        "kind = (window, own, head in bare)",
        "kind = (window, own, head + 1 in bare)",
        "test_dial_heads.py::test_bare_heads_equal_the_loop_over_pairs_without_the_map[full-native]",
    ),
    Mutant(
        "ranking of heads: limited heads have the maps of others",
        "hf/_probe.py",
        "others = (~near).nonzero()[:, 0].tolist()",
        "others = list(range(int((~near).sum())))",
        "test_hf_heads.py::test_limited_heads_have_the_maps_that_are_given[Bert-AutoModel]",
    ),
    Mutant(
        "windows by head: outputs in the order of the groups",
        "attention/_heads.py",
        "    return whole if order is None else select(whole, order, -3)",
        "    return whole",
        "test_dial_heads.py::test_native_gives_the_bits_of_separate_calls[float64-full]",
    ),
    Mutant(
        "windows by head: grouped queries beside those of their key head",
        "attention/_dial.py",
        "tuple(head * shared + i for head in own for i in range(shared))",
        "tuple(head + i * heads for head in own for i in range(shared))",
        "test_dial_heads.py::test_weights_are_those_of_separate_calls",
    ),
    Mutant(
        "windows by head: the map's weights of the first heads",
        "attention/_heads.py",
        "return tuple(head * each + i for head in own for i in range(each))",
        "return tuple(head * each + i for head in range(len(own)) for i in range(each))",
        "test_dial_heads.py::test_learned_weights_and_gains_are_those_of_the_head",
    ),
    Mutant(
        "windows by head: a mask of the first heads",
        "attention/_mixed.py",
        "mask=entries(options.mask, k, group.heads)",
        "mask=entries(options.mask, k, tuple(range(len(group.heads))))",
        "test_dial_heads.py::test_native_gives_the_bits_of_separate_calls[float64-causal]",
    ),
    Mutant(
        "windows by head: a decoder writes to the heads of the first part",
        "attention/_decode.py",
        "out[..., part.queries, :], zero =",
        "out[..., : len(part.group.queries), :], zero =",
        "test_dial_heads.py::TestDecoder::test_steps_are_the_whole",
    ),
    Mutant(
        "windows by head: the bytes of heads in the order of the groups",
        "attention/_mixed.py",
        "return tuple(found[head] for head in sorted(found))",
        "return tuple(found.values())",
        "test_dial_heads.py::TestStates::test_each_head_has_the_state_of_a_separate_call",
    ),
    Mutant(
        "near and far: sinks counted twice, exactly and in the sums",
        "engines/_near.py",
        "leaving = leaving._replace(keep=leaving.keep & (rank >= t))",
        "leaving = leaving._replace(keep=leaving.keep)",
        "test_window.py::test_every_map_equals_the_loop_over_pairs[elu]",
    ),
    Mutant(
        "near and far: the far sum includes the window",
        "engines/_dense.py",
        "        far = allowed & ~close",
        "        far = allowed & (close | ~close)",
        "test_window.py::test_every_map_equals_the_loop_over_pairs[elu]",
    ),
    Mutant(
        "near and far: the reference of a row looks ahead",
        "engines/_near.py",
        "    return xp.exp(scores - safe(stop_gradient(top), xp)), top",
        "    top = xp.max(top, axis=-2, keepdims=True) + 0 * top\n"
        "    return xp.exp(scores - safe(stop_gradient(top), xp)), top",
        "test_window.py::test_past_is_bit_identical_when_the_future_changes[elu-chunked]",
    ),
    Mutant(
        "near and far: a segment keeps the sinks and the window of the one before",
        "engines/_near.py",
        "        held = held & ~restarted",
        "        held = held & (restarted | ~restarted)",
        "test_window.py::test_segments_are_sequences_of_their_own[chunked]",
    ),
    Mutant(
        "near and far: masked tokens are counted",
        "engines/_near.py",
        "own = xp.cumulative_sum(keep, axis=-2) - keep",
        "own = xp.cumulative_sum(xp.ones_like(keep), axis=-2) - 1",
        "test_window.py::test_padding_changes_nothing[dense]",
    ),
    Mutant(
        "near and far: the largest near score without its gradient",
        "engines/_near.py",
        "shift = shift + safe(top_wide, xp)",
        "shift = shift + stop_gradient(safe(top_wide, xp))",
        "test_window_gradients.py::test_gradcheck[elu-dense]",
    ),
    Mutant(
        "near and far: a bound for the size of far sums that are 0",
        "engines/_near.py",
        "largest = xp.where(size == 0, xp.full_like(largest, -math.inf), largest)",
        "largest = xp.where(size == 0, stop_gradient(shift), largest)",
        "test_window.py::test_near_weights_survive_where_the_far_ones_are_zero[chunked]",
    ),
    Mutant(
        "near and far: merge numbers the right half from 0",
        "engines/_merge.py",
        "near_ranks(rule, right) + base",
        "near_ranks(rule, right) + 0 * base",
        "test_window_state.py::test_halves_merge_to_the_whole",
    ),
    Mutant(
        "near and far: without features the far keys still spoil",
        "engines/_dense.py",
        "far, allowed = xp.zeros_like(far), near",
        "far = xp.zeros_like(far)",
        "test_window.py::test_exactly_the_dependent_outputs_become_nan[softmax]",
    ),
    Mutant(
        "the recurrent engine keeps what the features have lost",
        "engines/_recurrent.py",
        "mixed = xp.where(lost, xp.zeros_like(mixed), mixed)",
        "mixed = xp.where(lost, mixed, mixed)",
        "test_engines.py::test_a_lesser_key_does_not_stand_in_for_one_that_the_features_have_lost"
        "[recurrent]",
    ),
    Mutant(
        "fit: held-out tokens forgotten",
        "torch/_transfer.py",
        "self.seen = self.held_out",
        "self.seen = _hashes([], shape)",
        "test_fit.py::test_tokens_that_were_fitted_to_cannot_judge[held-out]",
    ),
    Mutant(
        "ranks: a token too few ahead of a masked one",
        "torch/distributed/_linear.py",
        "else max(window, sinks) + 1",
        "else max(window, sinks)",
        "test_distributed.py::test_several_ranks_are_one[full window]",
    ),
    Mutant(
        "ranks: a text goes on in another one",
        "torch/distributed/_shards.py",
        "return before if fresh is None else _emptied(before, fresh), token",
        "return before, token",
        "test_distributed.py::test_several_ranks_are_one[segments]",
    ),
    Mutant(
        "ranks: tokens far ahead forgotten",
        "torch/distributed/_linear.py",
        "before = with_far_sums(before, ahead)",
        "before = before",
        "test_distributed.py::test_several_ranks_are_one[full window]",
    ),
    Mutant(
        "ranks: positions count on over texts",
        "torch/distributed/_tokens.py",
        "torch.where(texts[i][1] == first, found[i][0], 0)",
        "found[i][0]",
        "test_distributed.py::test_a_layer_over_ranks_is_one[attention]",
    ),
    Mutant(
        "ranks: a text that has an earlier number again goes on from it",
        "torch/distributed/_tokens.py",
        "own[1], own[2], own[3] = runs[:, -1], segment_ids[..., 0], segment_ids[..., -1]",
        "own[2], own[3] = segment_ids[..., 0], segment_ids[..., -1]",
        "test_distributed.py::test_a_layer_over_ranks_is_one[attention]",
    ),
    Mutant(
        "ranks: taps reach no further than the rank before",
        "torch/distributed/_tokens.py",
        "slots <= end[:, None] for end in self.ends",
        "(slots <= end[:, None]) & (end is self.ends[-1]) for end in self.ends",
        "test_distributed.py::test_a_layer_over_ranks_is_one[ssd:state_dim=4]",
    ),
    Mutant(
        "ranks: a corrected state goes on in another text",
        "torch/distributed/_tokens.py",
        "A = torch.where(fresh, torch.zeros_like(A), A)",
        "A = A",
        "test_distributed.py::test_a_layer_over_ranks_is_one[deltanet]",
    ),
    Mutant(
        "workers: what is shared is sent for each piece of work",
        "_executor.py",
        "if self.path not in _OPENED:",
        "if True:",
        "test_executor.py::test_a_team_sends_what_is_shared_once_for_all_its_work",
    ),
    Mutant(
        "fit: held-out tokens fitted to",
        "torch/_transfer.py",
        "            if same:\n                raise",
        "            if same < 0:\n                raise",
        "test_fit.py::test_held_out_tokens_must_be_others",
    ),
    Mutant(
        "fit: texts in order after a stop from the first",
        "torch/_fit.py",
        "order[place:]",
        "order[0:]",
        "test_fit.py::test_a_run_that_was_stopped_ends_as_if_it_had_not_been[list]",
    ),
    Mutant(
        "fit: a stream from its beginning after a stop",
        "torch/_fit.py",
        "islice(stream, run.step, None)",
        "islice(stream, 0, None)",
        "test_fit.py::test_a_run_that_was_stopped_ends_as_if_it_had_not_been[stream]",
    ),
    Mutant(
        "fit: moments lost by a stop",
        "torch/_snapshot.py",
        "dict(zip(MOMENTS, moments, strict=True))",
        "{part: 0 * x for part, x in zip(MOMENTS, moments, strict=True)}",
        "test_fit.py::test_a_run_that_was_stopped_ends_as_if_it_had_not_been[list]",
    ),
    Mutant(
        "fit: the best of all heads, not of each",
        "torch/_transfer.py",
        "better = mean < least",
        "better = (mean.mean() < least.mean()).expand(len(mean))",
        "test_fit.py::test_a_head_keeps_its_best_weights_whatever_the_others_do",
    ),
    Mutant(
        "fit: key heads dealt out in turn",
        "analysis/_fitted.py",
        "x[place * x.shape[0] // heads]",
        "x[place % x.shape[0]]",
        "test_fit.py::test_each_head_gets_its_own_weights_and_those_of_its_key_head",
    ),
    Mutant(
        "fit: gains lost with another window",
        "analysis/_fitted.py",
        '"far": dial.far, **tail',
        '"far": None, **tail',
        "test_fit.py::test_gains_stay_with_another_window_and_go_without_one",
    ),
    Mutant(
        "fit: judged with another scale than fitted",
        "analysis/_pieces.py",
        "        scale=scale_of(setting),\n",
        "",
        "test_fit.py::test_scale_and_causality_are_those_of_the_data_and_compare_says_if_they_differ",
    ),
    Mutant(
        "fit: one token known without those before it",
        "analysis/_repeats.py",
        "STRETCH = 8",
        "STRETCH = 1",
        "test_fit.py::test_a_token_is_known_by_the_stretch_before_it",
    ),
    Mutant(
        "taps of a convolution reach into the text before",
        "engines/_convolution.py",
        "same = runs[:, tap : tap + n, :] == runs[:, before:, :]",
        "same = runs[:, before:, :] == runs[:, before:, :]",
        "test_sequence.py::test_nan_reaches_what_depends_on_it_and_nothing_else"
        "[short_convolution-direct]",
    ),
    Mutant(
        "a convolution keeps padding for the next call",
        "engines/_convolution.py",
        "kept = kept - n + xp.sum(astype(keep, index), axis=-2)",
        "kept = kept",
        "test_sequence.py::test_engines_agree_with_the_loop_over_tokens[short_convolution-direct]",
    ),
    Mutant(
        "a text begins with the state of the one before in a selective scan",
        "engines/_scan.py",
        "return every if fresh is None else xp.where(fresh, added, every)",
        "return every",
        "test_sequence.py::test_engines_agree_with_the_loop_over_tokens[selective_scan-chunked]",
    ),
    Mutant(
        "padding counted in rotary positions",
        "torch/_tokens.py",
        "own = own if mask is None else own * mask",
        "own = own",
        "test_torch_attention.py::test_padding_anywhere_is_as_though_it_were_not_there"
        "[window, all options]",
    ),
    Mutant(
        "positions that do not start again with a packed text",
        "torch/_tokens.py",
        "before = torch.where(runs == 0, before, 0) - begins",
        "before = before + 0 * begins",
        "test_torch_attention.py::test_packed_texts_do_not_see_each_other[elu, all options]",
    ),
    Mutant(
        "NaN of padding in the gradients of projections",
        "torch/_mixer.py",
        "if mask is not None:  # so that NaN in padding has no effect, forward or backward",
        "if False:",
        "test_torch_attention.py::test_padding_anywhere_is_as_though_it_were_not_there[softmax]",
    ),
    Mutant(
        "float16 projected in float16",
        "torch/_mixer.py",
        "if x.dtype == torch.float16:",
        "if False:",
        "test_torch_attention.py::test_float16_stays_finite_up_to_its_largest_numbers[softmax]",
    ),
    Mutant(
        "over ranks the delta rule leaves out what a query reads of earlier tokens",
        "torch/mixers/_delta_rule.py",
        "(o + P @ S).to(dtype)",
        "o.to(dtype)",
        "test_distributed.py::test_a_layer_over_ranks_is_one[kda]",
    ),
    Mutant(
        "a layer with the delta rule reaches into the text before",
        "torch/mixers/_delta_rule.py",
        '"segment_ids": tokens.segment_ids}',
        '"segment_ids": None}',
        "test_mixers.py::test_packed_texts_do_not_see_each_other[deltanet]",
    ),
    Mutant(
        "gated DeltaNet 2 reads with the whole key",
        "torch/mixers/_gated_delta_net_2.py",
        "read=b * k",
        "read=k",
        "test_mixers.py::test_delta_rules_are_the_equations_of_their_papers[gated_deltanet2]",
    ),
    Mutant(
        "Comba corrects the query by the whole key",
        "torch/mixers/_comba.py",
        "unit(heads.q) - D * p",
        "unit(heads.q) - D * k",
        "test_mixers.py::test_delta_rules_are_the_equations_of_their_papers[comba]",
    ),
    Mutant(
        "RWKV-7 reads after the decay",
        "torch/mixers/_rwkv7.py",
        "read=kappa * torch.exp(-log_decay)",
        "read=kappa",
        "test_mixers.py::test_rwkv7_is_the_equation_of_its_paper",
    ),
    Mutant(
        "DeltaProduct gives the query to its first step",
        "torch/mixers/_delta_product.py",
        "(0, 0, s - 1, 0)",
        "(0, 0, 0, s - 1)",
        "test_mixers.py::test_delta_product_corrects_several_times_for_each_token",
    ),
    Mutant(
        "Mesa solves without its ridge",
        "torch/mixers/_mesa.py",
        "product = from_keys + ridge * direction",
        "product = from_keys + 0 * ridge * direction",
        "test_mixers.py::test_mesa_predicts_by_ridge_regression_on_the_tokens_so_far",
    ),
    Mutant(
        "power retention forgets its decay",
        "torch/mixers/_power_retention.py",
        '"log_decay": heads.log_decay,',
        '"log_decay": None,',
        "test_mixers.py::test_power_retention_weighs_by_powers_of_inner_products_that_decay",
    ),
    Mutant(
        "RWKV reads a token before its bonus",
        "torch/mixers/_rwkv.py",
        "            k=late_k,\n",
        "            k=k,\n",
        "test_mixers.py::test_rwkv_reads_what_was_there_before_the_token_and_the_token_with_its_bonus",
    ),
    Mutant(
        "padding kept by Hyena for the next call",
        "torch/mixers/_hyena.py",
        "took = 1 if tokens.mask is None else tokens.mask[:, -1:].to(torch.int64)",
        "took = 1",
        "test_mixers.py::test_padding_anywhere_is_as_though_it_were_not_there[hyena]",
    ),
    Mutant(
        "a query of recall asks for another value",
        "recall/_task.py",
        "return Examples(tokens, places, values)",
        "return Examples(tokens, places, np.roll(values, 1, axis=1))",
        "test_recall.py::test_every_query_stands_at_an_even_offset_and_asks_for_the_value_of_its_key",
    ),
    Mutant(
        "a training of recall that was kept begins its order anew",
        "recall/_train.py",
        "for step in range(len(losses), settings.steps):",
        "for step in range(settings.steps - len(losses)):",
        "test_recall.py::test_a_long_training_goes_on_from_the_step_it_had_kept",
    ),
    Mutant(
        "a killed training forgets what Adam knew",
        "torch/_train.py",
        "    optimizer.load_state_dict(held)\n",
        "",
        "test_language_model.py::test_after_kill_9_in_a_step_training_goes_on_with_the_same_losses",
    ),
    Mutant(
        "rows drawn anew after a kill",
        "torch/_train.py",
        "np.random.default_rng((settings.seed, step))",
        "np.random.default_rng()",
        "test_language_model.py::test_after_kill_9_in_a_step_training_goes_on_with_the_same_losses",
    ),
    Mutant(
        "delta rule: the decay applied after the correction",
        "engines/_delta_recurrent.py",
        """    if token.log_decay is not None:
        S = xp.exp(token.log_decay).mT * S
    erase = token.k if token.erase is None else token.erase
    S = S - erase.mT @ (token.read @ S) + token.k.mT @ token.write
""",
        """    erase = token.k if token.erase is None else token.erase
    S = S - erase.mT @ (token.read @ S) + token.k.mT @ token.write
    if token.log_decay is not None:
        S = xp.exp(token.log_decay).mT * S
""",
        "test_delta_rule.py::test_every_engine_is_the_loop[recurrent-token]",
    ),
    Mutant(
        "delta rule: β on the write alone",
        "engines/_delta_problem.py",
        "        read = read * beta\n",
        "        read = read * (beta > 0)\n",
        "test_delta_rule.py::test_every_engine_is_the_loop[chunked-none]",
    ),
    Mutant(
        "delta rule: a masked token corrects the state",
        "engines/_delta_problem.py",
        "x, bad = finite(blank(grouped(x), keep, xp), xp)",
        "x, bad = finite(grouped(x), xp)",
        "test_delta_rule.py::TestPromises::test_pads_and_splits_change_nothing[chunked]",
    ),
    Mutant(
        "delta rule: a new segment keeps the state of the one before",
        "engines/_delta_chunked.py",
        "xp.where(tokens.restart, xp.full_like(log_decay, -math.inf), log_decay)",
        "xp.where(tokens.restart, xp.full_like(log_decay, -1.0), log_decay)",
        "test_delta_rule.py::TestPromises::test_packed_texts_do_not_see_each_other[chunked-token]",
    ),
    Mutant(
        "delta rule: the triangular system with its diagonal",
        "engines/_delta_chunked.py",
        "xp.tril(decays.scores(read, x), k=-1), None, xp)",
        "xp.tril(decays.scores(read, x)), None, xp)",
        "test_delta_rule.py::test_every_engine_is_the_loop[chunked-none]",
    ),
    Mutant(
        "delta rule: no refinement of the triangular system",
        "engines/_delta_chunked.py",
        "solved, last = finite(rough + inverse @ rest, xp)",
        "solved, last = finite(rough + 0 * rest, xp)",
        "test_delta_rule.py::test_almost_equal_keys_with_beta_2_in_float32",
    ),
    Mutant(
        "delta weights: read where it should erase",
        "attention/_delta_weights.py",
        "after = y - (y @ x.mT) @ e",
        "after = y - (y @ e.mT) @ x",
        "test_delta_weights.py::test_rows_times_values_are_the_output[token-erase-read]",
    ),
    Mutant(
        "accelerate: Mamba-2 without its skip",
        "hf/_state_space.py",
        "(D.to(wide)[..., None] * x).add_(output)",
        "(0 * D.to(wide)[..., None] * x).add_(output)",
        "test_hf_functions.py::test_the_scan_of_mamba_2_continues_a_state",
    ),
    Mutant(
        "accelerate: a step leaves the state as it was",
        "hf/_state_space.py",
        "    state.copy_(new.view(state.shape))\n",
        "",
        "test_hf_functions.py::test_a_step_of_mamba_1_changes_the_state_in_place",
    ),
    Mutant(
        "accelerate: the groups of Mamba-2 in another order",
        "hf/_state_space.py",
        "output = made[0].movedim(3, 1).flatten(2, 3)",
        "output = made[0].movedim(3, 1).transpose(2, 3).flatten(2, 3)",
        "test_hf_functions.py::test_the_scan_of_mamba_2_continues_a_state",
    ),
    Mutant(
        "accelerate: every packed text gets the state of the first",
        "hf/_delta.py",
        "initial_state[i : i + 1]",
        "initial_state[:1]",
        "test_hf_functions.py::test_packed_texts_have_a_state_each_in_the_delta_rule",
    ),
    Mutant(
        "accelerate: tensors of other devices are taken over",
        "hf/_accelerate.py",
        "if all(x.is_cpu for",
        "if any(x.is_cpu for",
        "test_hf_accelerate.py::test_tensors_elsewhere_go_where_they_went",
    ),
    Mutant(
        "accelerate: restore does not wait for the last holder",
        "hf/_accelerate.py",
        "if not _HOLDERS[key][1]:",
        "if True:",
        "test_hf_accelerate.py::test_a_second_call_replaces_nothing_again",
    ),
    Mutant(
        "linearize: planted facts are not trained on",
        "hf/_finetune.py",
        "if self.planted:",
        "if False:",
        "test_hf_heads.py::"
        "test_training_on_planted_facts_brings_their_answers_nearer_to_the_original",
    ),
    Mutant(
        "linearize: validation leaves planted facts out",
        "hf/_finetune.py",
        "if self.held_out_planted:",
        "if False:",
        "test_hf_heads.py::"
        "test_training_on_planted_facts_brings_their_answers_nearer_to_the_original",
    ),
    Mutant(
        "linearize: planted facts that validate stand in text that is trained on",
        "hf/_linearize.py",
        "for texts in (windows.fitted, windows.validation)",
        "for texts in (windows.fitted, windows.fitted)",
        "test_hf_heads.py::test_models_with_whole_heads_are_trained_on_planted_facts",
    ),
    Mutant(
        "linearize: planted facts have the phrasings that evaluate",
        "hf/_linearize.py",
        "trials=trials, phrasings=FITTED_PHRASINGS, seed=seed",
        "trials=trials, seed=seed",
        "test_hf_heads.py::test_models_are_evaluated_on_phrasings_that_nothing_was_fitted_to",
    ),
]


def run(tests: list[str], package: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(package.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CI": "true",  # hypothesis derandomised
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0"]
    command += [f"tests/{test}" for test in tests]
    return subprocess.run(
        command, cwd=package.parent.parent, env=environment, capture_output=True, text=True
    )


def copy_tree(target: Path) -> Path:
    for name in ("src", "tests", "labs", "tools"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)
    return target / "src" / "kerneltrick"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="run the mutants whose name contains this")
    chosen = parser.parse_args().only
    mutants = [m for m in MUTANTS if not chosen or chosen in m.name]
    with tempfile.TemporaryDirectory() as folder:
        package = copy_tree(Path(folder))
        clean = run(sorted({m.test for m in mutants}), package)
        if clean.returncode:
            print(clean.stdout)
            print("the tests fail without any mutant: mend that first")
            return 2
        survivors = 0
        for number, mutant in enumerate(mutants, 1):
            file = package / mutant.file
            source = file.read_text()
            if source.count(mutant.old) != 1:
                print(f"{number:2} STALE     {mutant.name}: its text is not once in {mutant.file}")
                survivors += 1
                continue
            file.write_text(source.replace(mutant.old, mutant.new))
            result = run([mutant.test], package)
            file.write_text(source)
            killed = result.returncode == 1
            survivors += not killed
            verdict = "killed" if killed else "SURVIVED"
            print(f"{number:2} {verdict:9} {mutant.name}  ({mutant.test})", flush=True)
    print(f"{len(mutants) - survivors} of {len(mutants)} mutants killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
