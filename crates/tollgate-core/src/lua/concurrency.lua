-- Twin of concurrency.rs.
-- limit: slots, lease.
local concurrency = ASKED[6] and holding('concurrency', false)
