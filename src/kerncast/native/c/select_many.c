void kerncast_select_many(kerncast_context *context, const kerncast_problem *problems, size_t count, kerncast_tier tier,
                          kerncast_answer *answers) {
    if (answers == NULL) return;
    for (size_t i = 0; i < count; i++) kerncast_select(context, problems == NULL ? NULL : &problems[i], tier, &answers[i]);
}

