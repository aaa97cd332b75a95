"""What `trainobs report` and its like print, from the numbers of `analysis`.

Each text by one module, some with help of others:

    brief       25 lines: `brief_lines`
    full        --full, by sections: `sections`, `loaders`, `tables`, `hot_lookups`, `rank_rows`,
                `own_counters`
    io_text, one_step, follow  --io, --step, --watch
    comparison, whatif, top    the other commands; their words: `sides`, `at_odds`
    html        the page in a browser, of `pieces`; for a server `page_data`, in a cell `notebook`
    rows, verdict_text, losses  what several of these say alike
"""
