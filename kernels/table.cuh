// The kernel tables: every (dtype, access, vectors) that src/plan.rs can ask for, once a family and op.
//
// A family's .cu file defines SOFTMAX_KERNEL and SOFTMAX_BACKWARD_KERNEL(dtype, D, access, Row, N), which
// instantiate its kernels as family_op_dtype_access_N. Arguments, the same for all:
//
//   rows            sizes of the row space
//   *_at            where each operand's rows lie
//   score           of attention only: what is done to scores (see score.cuh)
//   x, y / y, g, dx storage of each operand; the output last
//   share           threads that share one row (see `share` in src/plan.rs for slices and chunks)
//   workspace       of the families gang and stream only: zeros, as many as `workspace` in src/plan.rs says (see gang.cuh)
#pragma once

#define SOFTMAX_PARAMETERS(D)                                                                                                    \
  const __grid_constant__ Rows rows, const __grid_constant__ Operand x_at, const __grid_constant__ Operand y_at, D::Storage *x,  \
      D::Storage *y, int share

#define SOFTMAX_BACKWARD_PARAMETERS(D)                                                                                           \
  const __grid_constant__ Rows rows, const __grid_constant__ Operand y_at, const __grid_constant__ Operand g_at,                 \
      const __grid_constant__ Operand dx_at, D::Storage *y, D::Storage *g, D::Storage *dx, int share

#define ATTENTION_PARAMETERS(D)                                                                                                  \
  const __grid_constant__ Rows rows, const __grid_constant__ Operand x_at, const __grid_constant__ Operand y_at,                 \
      const __grid_constant__ Score score, D::Storage *x, D::Storage *y, int share

#define ATTENTION_BACKWARD_PARAMETERS(D)                                                                                         \
  const __grid_constant__ Rows rows, const __grid_constant__ Operand y_at, const __grid_constant__ Operand g_at,                 \
      const __grid_constant__ Operand dx_at, const __grid_constant__ Score score, D::Storage *y, D::Storage *g, D::Storage *dx, int share

#define GANG_PARAMETER u64 *workspace

#define FOR_EACH_DTYPE(TABLE)                                                                                                    \
  TABLE(f16, F16)                                                                                                                \
  TABLE(bf16, BF16)                                                                                                              \
  TABLE(f32, F32)                                                                                                                \
  TABLE(f64, F64)

// Of attention: scale and band alone, all that there is, and the gradient.
#define ATTENTION_TABLES(ROW_TABLE, KERNEL, BACKWARD_KERNEL)                                                                     \
  ROW_TABLE(f16, F16, KERNEL, attention, NO_EXTRAS)                                                                              \
  ROW_TABLE(bf16, BF16, KERNEL, attention, NO_EXTRAS)                                                                            \
  ROW_TABLE(f32, F32, KERNEL, attention, NO_EXTRAS)                                                                              \
  ROW_TABLE(f64, F64, KERNEL, attention, NO_EXTRAS)                                                                              \
  ROW_TABLE(f16, F16, KERNEL, attention_biased, ANY_EXTRAS)                                                                      \
  ROW_TABLE(bf16, BF16, KERNEL, attention_biased, ANY_EXTRAS)                                                                    \
  ROW_TABLE(f32, F32, KERNEL, attention_biased, ANY_EXTRAS)                                                                      \
  ROW_TABLE(f64, F64, KERNEL, attention_biased, ANY_EXTRAS)                                                                      \
  ROW_TABLE(f16, F16, BACKWARD_KERNEL, attention_backward, ANY_EXTRAS)                                                           \
  ROW_TABLE(bf16, BF16, BACKWARD_KERNEL, attention_backward, ANY_EXTRAS)                                                         \
  ROW_TABLE(f32, F32, BACKWARD_KERNEL, attention_backward, ANY_EXTRAS)                                                           \
  ROW_TABLE(f64, F64, BACKWARD_KERNEL, attention_backward, ANY_EXTRAS)
