static double kc_clip(double x) { return x > 10.0 ? 10.0 : x < -10.0 ? -10.0 : x; }
