/* The memory sentinel: every item reads `steps` vectors, neighbours side by side, and keeps a sum of them. */
__kernel void stream(__global const uint4 *data, __global uint *kept, int steps) {
    const size_t items = get_global_size(0), id = get_global_id(0);
    uint4 sum = 0;
    for (int i = 0; i < steps; i++)
        sum += data[i * items + id];
    kept[id] = sum.x + sum.y + sum.z + sum.w;
}
