"""For each rule that searches, one program of ``programs.py`` in which the rule fires.

A new rule is listed beside a program here. A rule that no longer fires in its program is moved to
another program.
"""

FIRES: dict[str, str] = {
    "chain": "matmul-definition match-matmul",
    "attention": "view-merge read-constants",
    "distributivity": "expression-split match-epilogue",
    "square": "mul-definition",
    "pooled-linear": "reduce-mean-definition",
    "residual-block": "boundary-tighten",
    "strided-conv": "conv2d-definition",
    "grouped-conv": "div-of-sum mul-by-one mul-of-mul zero-add",
    "depthwise-conv": "grouped-conv2d-definition",
    "transposed-conv": "conv-transpose2d-definition iterator-split match-conv-transpose2d",
    "grouped-transposed-conv": "grouped-conv-transpose2d-definition phase-select",
    "band-attention": "div-of-multiple mod-of-sum add-zero gbmm-definition match-gbmm",
    "windowed-attention":
        "less-equal-definition logical-and-definition restrict reach where-as-and and-true",
    "band-softmax": "div-cancel div-mod g2bmm-definition match-g2bmm",
    "biased-chain": "fold-constants fold-terms",
    "weighted-mean": "divided",
    "scaled-layer": "scale-of-shifted",
    "standardized-layer": "scale-of-shifted-and-shift",
    "taken-off": "terms-cancel",
    "squared-distances": "sub-definition pow-definition",
    "normalized-attention": "exp-definition",
    "repeated-rows": "expand-definition quotient",
    "identity-matrix": "equality-is-one hoist",
    "identity-matrix-64": "delta-under-sum",
    "diagonal-matrix": "diagonal-is-product",
    "causal-products": "triangle-is-product",
    "mask-of-numbers": "zero-is-not-chosen not-at-most",
    "sums-from-the-end": "other-triangle-is-product",
    "sums-of-rows": "order-is-ones match-cumsum",
    "running-sum": "cum-sum-definition",
    "sums-of-running-sums": "cumsum-of-sum cumsum-of-difference",
    "chosen-rows": "choice-of-sums choice-of-matmuls",
    "masked-rows": "mask-of-sum mask-of-rows",
    "filled-rows": "mask-of-others mask-of-bias",
    "filled-product": "mask-of-other-rows",
    "masked-columns": "mask-of-columns",
    "unless": "not-chosen",
    "picked-along": "gather-along",
    "looked-up-rows": "identity-view gather-rows ungather-rows",
    "rows-in-reverse": "number-of-range rows-by-place",
    "reversed-rows": "reverse-definition",
    "one-hot-rows": "convert-of-converted-equality cast-definition",
    "one-hot-product": "convert-of-rows",
    "enlarged-convolution": "shared-places",
    "conditioned-convolution": "broadcast-beyond",
    "parallel-convolutions": "common-factor derived-constants",
    "large-window": "sum-split window-split",
    "shared-input": "tanh-definition",
    "flattened-patches": "variable-substitution reduction-unfold",
    "softmax": "softmax-definition",
    "pooling": "avg-pool2d-definition",
    "max-pooling": "max-pool2d-definition rfactor",
    "padded-maximum": "pad-definition",
    "pooled-twice": "reduction-merge iterator-merge",
    "mlp": "gelu-definition reshape-same",
    "layer-norm": "reciprocal-of-sqrt sqrt-definition",
    "layer-norm-operator": "layer-norm-definition multiply-out",
    "shuffled-halves": "slice-definition",
    "steps-of-a-loop": "concat-definition stack",
    "part-of-a-normalization": "layer-norm-affine term-split slice-of-layer-norm",
    "largest": "reduce-max-definition extremum",
    "broadcast": "factor distribute",
    "padded-sum": "traversal-merge",
    "wide-convolution": "operand-split merge-matmuls merged-matmul-definition",
    "pad-and-crop": "div-of-mod mod-of-mod stride-definition shift-definition",
    "split-and-merge": "relu-definition merge-definition merge-as-reshape",
    "views-of-views":
        "div-of-sum-behind mod-of-sum-behind mul-of-sum add-assoc shift-of-shift shift-round "
        "stride-of-stride stride-by-one",
    "unfold": "unfold-definition match-conv2d",
    "reduced-windows": "split-definition split-as-reshape",
    "elementwise":
        "abs-idempotent abs-definition maximum-definition expand-same relu-of-relu neg-of-neg "
        "concat-of-one expand-of-expand",
    "every-elementwise":
        "max-idempotent min-idempotent log-definition exp2-definition expm1-definition "
        "log2-definition log10-definition log1p-definition trunc-definition rsqrt-definition "
        "reciprocal-definition sign-definition floor-definition ceil-definition sin-definition "
        "cos-definition erf-definition sigmoid-definition silu-definition gelu-tanh-definition "
        "logical-not-definition floor-divide-definition remainder-definition minimum-definition "
        "not-equal-definition less-definition greater-definition logical-or-definition",
    "scalars": "relu-idempotent abs-of-relu max-with-zero zero-with-max",
    "indices":
        "div-of-div mod-of-multiple min-of-small max-of-large min-of-min max-of-max max-of-min "
        "min-of-multiple max-of-multiple min-of-negative max-of-negative div-of-min div-of-max "
        "div-mod-in-sum div-mod-scaled div-mod-scaled-in-sum collect-same collect-same-in-sum "
        "collect-multiple collect-multiple-in-sum collect-multiple-behind "
        "collect-multiple-behind-in-sum collect-multiples collect-multiples-in-sum",
    "one-of-a-batch": "derived-form part",
    "taps-apart": "tap-merge merge-conv2ds merged-conv2d-definition",
    "doubled": "expression-fusion like-terms number-is-full",
    "max-of-views": "reshape-definition match-view",
    "odd-extents": "reduce-min-definition reduce-prod-definition",
    "narrow-integers": "reduce-sum-definition neg-definition",
    "counted-bools": "add-definition",
    "weighted-sum": "canonical-form",
    "upsampled-product": "upsample-of-conv1x1",
    "upsampling": "upsample-bilinear2d-definition reshape-of-reshape",
    "windows-by-tiles": "mod-of-small correlate correlate-losing",
    "attended": "div-definition attention-definition match-attention-unscaled",
    "attended-half": "traversal-order match-attention",
    "shifted-softmax": "hoist-map",
    "attended-quotient": "invariants match-attention-quotient",
    "attended-below":
        "iota-definition greater-equal-definition causal-attention-definition "
        "match-causal-attention",
    "attended-mask":
        "where-definition equal-definition masked-attention-definition match-masked-attention",
    "attended-seen": "seen-by-none",
    "hidden-half": "hide",
    "hidden-quotient": "match-causal-attention-quotient",
    "hidden-scores": "match-causal-attention-unscaled",
    "transposed-products": "permute-definition",
}  # fmt: skip
