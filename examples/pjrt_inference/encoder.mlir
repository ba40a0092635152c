// A small encoder over a batch of 8 vectors of 128 features: four residual layers with normalisation, and a softmax over
// 32 classes. The weights are arguments, so that they stay on the device from request to request.
module @encoder {
  // x + tanh(normalise(x) w + b)
  func.func private @layer(%x: tensor<8x128xf32>, %w: tensor<128x128xf32>, %b: tensor<128xf32>) -> tensor<8x128xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %count = stablehlo.constant dense<128.0> : tensor<8xf32>
    %epsilon = stablehlo.constant dense<1.0e-5> : tensor<8xf32>
    %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x128xf32>, tensor<f32>) -> tensor<8xf32>
    %mean = stablehlo.divide %sum, %count : tensor<8xf32>
    %mean_wide = stablehlo.broadcast_in_dim %mean, dims = [0] : (tensor<8xf32>) -> tensor<8x128xf32>
    %centred = stablehlo.subtract %x, %mean_wide : tensor<8x128xf32>
    %square = stablehlo.multiply %centred, %centred : tensor<8x128xf32>
    %square_sum = stablehlo.reduce(%square init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x128xf32>, tensor<f32>) -> tensor<8xf32>
    %variance = stablehlo.divide %square_sum, %count : tensor<8xf32>
    %safe = stablehlo.add %variance, %epsilon : tensor<8xf32>
    %scale = stablehlo.rsqrt %safe : tensor<8xf32>
    %scale_wide = stablehlo.broadcast_in_dim %scale, dims = [0] : (tensor<8xf32>) -> tensor<8x128xf32>
    %normal = stablehlo.multiply %centred, %scale_wide : tensor<8x128xf32>
    %product = stablehlo.dot_general %normal, %w, contracting_dims = [1] x [0] : (tensor<8x128xf32>, tensor<128x128xf32>) -> tensor<8x128xf32>
    %bias = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<128xf32>) -> tensor<8x128xf32>
    %shifted = stablehlo.add %product, %bias : tensor<8x128xf32>
    %active = stablehlo.tanh %shifted : tensor<8x128xf32>
    %result = stablehlo.add %x, %active : tensor<8x128xf32>
    return %result : tensor<8x128xf32>
  }

  func.func public @main(%x: tensor<8x128xf32>,
      %w0: tensor<128x128xf32>, %b0: tensor<128xf32>, %w1: tensor<128x128xf32>, %b1: tensor<128xf32>,
      %w2: tensor<128x128xf32>, %b2: tensor<128xf32>, %w3: tensor<128x128xf32>, %b3: tensor<128xf32>,
      %head: tensor<128x32xf32>) -> tensor<8x32xf32> {
    %h0 = call @layer(%x, %w0, %b0) : (tensor<8x128xf32>, tensor<128x128xf32>, tensor<128xf32>) -> tensor<8x128xf32>
    %h1 = call @layer(%h0, %w1, %b1) : (tensor<8x128xf32>, tensor<128x128xf32>, tensor<128xf32>) -> tensor<8x128xf32>
    %h2 = call @layer(%h1, %w2, %b2) : (tensor<8x128xf32>, tensor<128x128xf32>, tensor<128xf32>) -> tensor<8x128xf32>
    %h3 = call @layer(%h2, %w3, %b3) : (tensor<8x128xf32>, tensor<128x128xf32>, tensor<128xf32>) -> tensor<8x128xf32>
    %logits = stablehlo.dot_general %h3, %head, contracting_dims = [1] x [0] : (tensor<8x128xf32>, tensor<128x32xf32>) -> tensor<8x32xf32>
    %lowest = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %largest = stablehlo.reduce(%logits init: %lowest) applies stablehlo.maximum across dimensions = [1] : (tensor<8x32xf32>, tensor<f32>) -> tensor<8xf32>
    %largest_wide = stablehlo.broadcast_in_dim %largest, dims = [0] : (tensor<8xf32>) -> tensor<8x32xf32>
    %below = stablehlo.subtract %logits, %largest_wide : tensor<8x32xf32>
    %powers = stablehlo.exponential %below : tensor<8x32xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %total = stablehlo.reduce(%powers init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x32xf32>, tensor<f32>) -> tensor<8xf32>
    %total_wide = stablehlo.broadcast_in_dim %total, dims = [0] : (tensor<8xf32>) -> tensor<8x32xf32>
    %classes = stablehlo.divide %powers, %total_wide : tensor<8x32xf32>
    return %classes : tensor<8x32xf32>
  }
}
