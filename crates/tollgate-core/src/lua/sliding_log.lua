-- Twin of sliding_log.rs.
-- limit: count, period.
local sliding_log = ASKED[5] and holding('sliding_log', true)
