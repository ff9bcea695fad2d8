"""Where each gradient comes from, in three lines."""

from __future__ import annotations

from collections.abc import Mapping

DERIVATIONS: Mapping[str, tuple[str, str, str]] = {
    "cumsum": (
        "∂y[i]/∂x[j] = 1 where j ≤ i, else 0: a lower triangle of ones.",
        "dx = Jᵀ·dy, and the transpose is an upper triangle of ones,",
        "so dx[j] = Σ_{i≥j} dy[i]: the same scan from the other end.",
    ),
    "cumprod": (
        "∂y[i]/∂x[j] = Π_{k≤i, k≠j} x[k] for j ≤ i; nothing is divided by x[j].",
        "What precedes j, P[j] = Π_{k<j} x[k], is common to all i ≥ j and comes out of the sum;",
        "what is left, R[j] = Σ_{i≥j} dy[i]·Π_{j<k≤i} x[k], obeys R[j] = dy[j] + x[j+1]·R[j+1].",
    ),
    "cummax": (
        "y[i] = x[h(i)], h(i) being where the maximum up to i is held.",
        "∂y[i]/∂x[j] = 1 where h(i) = j, so dx[j] = Σ dy[i] over the i held by j.",
        "h never goes back, so those i are a run: one pass from the end, reset where a run begins.",
    ),
    "cummin": (
        "y[i] = x[h(i)], h(i) being where the minimum up to i is held.",
        "∂y[i]/∂x[j] = 1 where h(i) = j, so dx[j] = Σ dy[i] over the i held by j.",
        "h never goes back, so those i are a run: one pass from the end, reset where a run begins.",
    ),
    "logcumsumexp": (
        "∂y[i]/∂x[k] = exp(x[k]−y[i]) for k ≤ i, so dx[k] = Σ_{i≥k} dy[i]·exp(x[k]−y[i]).",
        "With exp(x[k]−y[k]) taken out there remains S[k] = Σ_{i≥k} dy[i]·exp(y[k]−y[i]),",
        "and S[k] = dy[k] + exp(y[k]−y[k+1])·S[k+1]. y never falls: no exponent is above 0.",
    ),
    "sum": (
        "y = Σ x[i], so ∂y/∂x[j] = 1 for every j.",
        "By the chain rule dx[j] = dy·1:",
        "each dy spread over the elements it was the sum of.",
    ),
    "mean": (
        "y = (Σ x[i]) / n, so ∂y/∂x[j] = 1/n for every j.",
        "By the chain rule dx[j] = dy/n,",
        "divided in float64 before it is rounded to the element type.",
    ),
    "max": (
        "y = x[h], h being where the maximum is held; ∂y/∂x[j] = 1 at h, else 0.",
        "With several holders the derivative is a set: any weights that add up to 1 are in it.",
        "'split' takes equal weights, 'first' and 'last' one holder; 'all' gives dy to each.",
    ),
    "min": (
        "y = x[h], h being where the minimum is held; ∂y/∂x[j] = 1 at h, else 0.",
        "With several holders the derivative is a set: any weights that add up to 1 are in it.",
        "'split' takes equal weights, 'first' and 'last' one holder; 'all' gives dy to each.",
    ),
    "prod": (
        "y = Π x[i], so ∂y/∂x[j] = Π_{i≠j} x[i], a product over the others.",
        "y / x[j] is the same where x[j] ≠ 0; with one zero only its own gradient is not 0,",
        "and with two all are 0. The product before j times the one after it needs no division.",
    ),
    "norm2": (
        "y² = Σ x[i]²; differentiate both sides: 2y·∂y/∂x[j] = 2x[j].",
        "So ∂y/∂x[j] = x[j]/y and dx[j] = dy·x[j]/y.",
        "At y = 0 all x are 0 and the subgradient 0 is taken.",
    ),
    "logsumexp": (
        "exp(y) = Σ exp(x[i]); differentiate both sides: exp(y)·∂y/∂x[j] = exp(x[j]).",
        "So ∂y/∂x[j] = exp(x[j] − y): a softmax, whose exponents are never above 0,",
        "and dx[j] = dy·exp(x[j] − y).",
    ),
    "var": (
        "y = Σ (x[i] − μ)² / m; the mean moves too, but Σ (x[i] − μ) = 0 cancels its part.",
        "So ∂y/∂x[j] = 2·(x[j] − μ)/m, with m = max(n − correction, 1),",
        "and dx[j] = dy·2·(x[j] − μ)/m.",
    ),
    "std": (
        "y² is the variance; differentiate both sides: 2y·∂y/∂x[j] = 2·(x[j] − μ)/m.",
        "So ∂y/∂x[j] = (x[j] − μ)/(m·y), with m = max(n − correction, 1).",
        "At y = 0 all x are equal and the subgradient 0 is taken.",
    ),
    "softmax": (
        "y[i] = exp(x[i]) / Σ exp(x), so ∂y[i]/∂x[j] = y[i]·(1[i=j] − y[j]).",
        "dx[j] = Σ_i dy[i]·y[i]·(1[i=j] − y[j]) = y[j]·dy[j] − y[j]·Σ_i y[i]·dy[i].",
        "So dx = y·(dy − s) with one number s = Σ y·dy for the row.",
    ),
    "log_softmax": (
        "y[i] = x[i] − log Σ exp(x), so ∂y[i]/∂x[j] = 1[i=j] − exp(y[j]).",
        "dx[j] = Σ_i dy[i]·(1[i=j] − exp(y[j])) = dy[j] − exp(y[j])·Σ_i dy[i].",
        "One number for the row, Σ dy; exp(y) is the softmax.",
    ),
    "sparsemax": (
        "y[i] = x[i] − tau where that is above 0, in S; Σ y = 1 gives Σ_S x − |S|·tau = 1.",
        "So ∂tau/∂x[j] = 1/|S| for j in S, and ∂y[i]/∂x[j] = 1[i=j] − 1/|S| for i and j in S.",
        "dx[j] = dy[j] − (Σ_S dy)/|S| in S, else 0. y tells what S is.",
    ),
    "entmax15": (
        "y[i] = (x[i]/2 − tau)² where x[i]/2 is above tau, in S; there ∂y/∂(x/2 − tau) = 2·√y.",
        "Σ y = 1 gives Σ_S √y·(1/2 − ∂tau/∂x) = 0, so ∂tau/∂x[j] = √y[j] / (2·Σ √y).",
        "dx[j] = √y[j]·(dy[j] − Σ √y·dy / Σ √y), which is 0 where y is.",
    ),
    "lerp": (
        "y = a + w·(b − a) = (1 − w)·a + w·b, with w a constant.",
        "∂y/∂a = 1 − w and ∂y/∂b = w, at every element alone.",
        "So da = (1 − w)·dy and db = w·dy, both written in one pass over dy.",
    ),
    "segment_sum": (
        "output = M·input, M[s, n] = 1 where ids[n] = s, else 0.",
        "d_input = Mᵀ·d_output, and row n of Mᵀ has a single 1, in column ids[n].",
        "So d_input[n] = d_output[ids[n]]: the backward of a sum by id is a gather by id.",
    ),
    "segment_mean": (
        "output[s] = Σ input[n] / c[s] over the c[s] rows of segment s.",
        "∂output[s]/∂input[n] = 1/c[s] where row n belongs to s, else 0.",
        "So d_input[n] = d_output[s]/c[s]: a gather, divided by the rows of the segment.",
    ),
    "linear_recurrence": (
        "y[t] = a[t]·y[t−1] + b[t]: into y[t] flow dy[t] and, through y[t+1], a[t+1]·g[t+1].",
        "So g[t] = dy[t] + a[t+1]·g[t+1], a recurrence from the end, begun by d_final.",
        "db = g, da[t] = g[t]·y[t−1], and in front of the row d_initial = a[0]·g[0].",
    ),
    "cross_entropy": (
        "loss = lse − logits[target], with lse = log Σ exp(logits).",
        "∂lse/∂logits[j] = exp(logits[j] − lse): the softmax; the other term is 1 at the target.",
        "So d_logits = d_loss·(softmax − target); an ignored row gives 0.",
    ),
}
