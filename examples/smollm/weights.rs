//! The matrices, quantised as the file has them or as plain ones, and products with them.
use super::gguf::Gguf;
use anyhow::{Context, Result};
use candle_core::quantized::QMatMul;
use candle_core::{DType, Device, Module, Tensor};

/// What weights become in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As the file has them: least memory. candle rounds the other operand to 8 bits for the product.
    Quantized,
    /// Matrices of the activations' dtype: the product is a plain one.
    Plain,
}

/// Where tensors go and what they become there.
pub struct Loader<'a> {
    pub gguf: &'a mut Gguf,
    pub form: Form,
    pub dtype: DType,
    pub device: &'a Device,
}

impl Loader<'_> {
    pub fn vector(&mut self, name: &str, length: usize) -> Result<Tensor> {
        let tensor = self.gguf.tensor(name, &[length], self.device)?;
        Ok(tensor.dequantize(self.device)?.to_dtype(self.dtype)?)
    }

    /// Of `to` rows and `from` columns.
    pub fn matrix(&mut self, name: &str, to: usize, from: usize) -> Result<Matrix> {
        let matrix = match self.form {
            Form::Quantized => {
                let tensor = self.gguf.tensor(name, &[to, from], self.device)?;
                match QMatMul::from_qtensor(tensor)? {
                    QMatMul::QTensor(tensor) => Matrix::Quantized(QMatMul::QTensor(tensor)),
                    // Of a file whose weights are floats.
                    QMatMul::Tensor(w) | QMatMul::TensorF16(w) => {
                        Matrix::Plain(w.to_dtype(self.dtype)?)
                    }
                }
            }
            // By way of host memory, where a large matrix in f32 is no trouble.
            Form::Plain => {
                let tensor = self.gguf.tensor(name, &[to, from], &Device::Cpu)?;
                let tensor = tensor.dequantize(&Device::Cpu)?.to_dtype(self.dtype)?;
                Matrix::Plain(tensor.to_device(self.device)?)
            }
        };
        Ok(matrix)
    }
}

#[derive(Clone)]
pub enum Matrix {
    Quantized(QMatMul),
    Plain(Tensor),
}

impl Matrix {
    /// `x · Wᵀ` of `x` (rows, from): (rows, to).
    pub fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Quantized(w) => w.forward(x),
            Self::Plain(w) => matmul(x, &w.t()?),
        }
    }

    /// Rows of the matrix: (ids, from).
    pub fn rows(&self, ids: &Tensor, dtype: DType) -> Result<Tensor> {
        let rows = match self {
            Self::Quantized(w) => w.embedding(ids),
            Self::Plain(w) => w.index_select(ids, 0),
        };
        let rows = rows.context("cannot look the tokens up")?;
        Ok(rows.to_dtype(dtype)?)
    }
}

/// A matrix product; bf16 on the CPU, where candle has none, goes by way of f32.
pub fn matmul(a: &Tensor, b: &Tensor) -> candle_core::Result<Tensor> {
    if a.dtype() == DType::BF16 && a.device().is_cpu() {
        let product = a.to_dtype(DType::F32)?.matmul(&b.to_dtype(DType::F32)?)?;
        return product.to_dtype(DType::BF16);
    }
    a.matmul(b)
}
